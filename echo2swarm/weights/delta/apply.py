"""Whole weights out of an older version's and a delta; or a reason why not.

What is made counts only if it is, bit for bit, what the learner signed. It is made
beside everything else: the base stays as it is, and a failure leaves nothing.
"""

import shutil
from functools import partial
from typing import Final

import structlog
import trio

from echo2swarm.weights.delta.compute import CODEC, patch
from echo2swarm.weights.delta.errors import BadDeltaError, WrongBaseError
from echo2swarm.weights.delta.in_steps import run_in_steps
from echo2swarm.weights.store import layout
from echo2swarm.weights.store.payload import Payload
from echo2swarm.weights.store.store import RESERVE_BYTES, PayloadStore
from protocols.errors import RemoteProtocolError
from protocols.manifest import PolicyManifest
from protocols.reasons import Reason

CODECS: Final = frozenset({CODEC})
"""The ways to apply a delta that are known here."""

_log = structlog.get_logger()


async def rebuild(
    store: PayloadStore, manifest: PolicyManifest, *, base: Payload, delta: Payload
) -> Payload:
    """Return the weights of ``manifest``, made from two payloads that are complete.

    Raises:
        RemoteProtocolError: the delta is malformed, of another base, or does not lead to
            the weights that were signed; the reason says which.
        StoreError: the disk can't be read or written, or is full.
    """
    ref, limiter = manifest.weights, trio.CapacityLimiter(1)
    staging = store.staging_folder(ref)
    hasher = layout.PayloadHasher(ref.chunk_bytes)
    try:
        with store.pin(base.root), store.pin(delta.root):
            await trio.to_thread.run_sync(
                partial(layout.create_staging, staging, ref, reserve_bytes=RESERVE_BYTES),
                limiter=limiter,
            )
            work = patch(
                delta.files / delta.ref.files[0].name,
                [base.files / file.name for file in base.ref.files],
                [(staging / layout.FILES / file.name, file.size_bytes) for file in ref.files],
                base_root=base.root,
                result_root=ref.root_sha256,
                on_bytes=hasher.update,
            )
            await run_in_steps(work, limiter=limiter)
        hashes, content_sha256 = hasher.finish()
        if content_sha256 != manifest.weights_sha256:
            raise BadDeltaError("what comes of it is not what was signed")
        return await store.admit(ref, staging, hashes)
    except WrongBaseError as exc:
        raise RemoteProtocolError(f"wrong delta: {exc}", reason=Reason.WRONG_BASE) from exc
    except BadDeltaError as exc:
        reason = Reason.WRONG_BASE if await store.find_damage(base) else Reason.BAD_DELTA
        raise RemoteProtocolError(f"bad delta: {exc}", reason=reason) from exc
    except OSError as exc:
        raise layout.disk_error(
            exc, "cannot rebuild weights", store.folder, needed_bytes=ref.size_bytes
        ) from exc
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(partial(shutil.rmtree, staging, ignore_errors=True))
