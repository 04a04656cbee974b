"""Which deltas the learner offers with a version, and how they come to be.

The newest S + 1 versions are bases, so that a node which missed some publishes is
one delta away; and so is the *anchor*, a version that stays when all around it
went: who is too slow to fetch any version before it is gone fetches that one.

The step from the version before is computed from the weights. All others are what
that version's manifest offers, with the step merged in: so what is on disk is all
that is needed, and after a restart it goes on where it was. A base for which the
chain is broken is not offered until it is the version before.
"""

import shutil
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from echo2swarm.system.errors import StoreError
from echo2swarm.weights.delta.compute import CODEC, TooLargeError, compose, diff
from echo2swarm.weights.delta.element_size import word_bytes_of
from echo2swarm.weights.delta.errors import BadDeltaError
from echo2swarm.weights.delta.in_steps import run_in_steps
from echo2swarm.weights.store.library import HeldVersion, VersionLibrary
from echo2swarm.weights.store.payload import Payload
from protocols.ids import PolicyVersion
from protocols.manifest import MAX_DELTAS, Delta

PUBLISHES_PER_ANCHOR: Final = 50
MAX_SHARE: Final = 0.7
"""A delta longer than this part of the weights is not worth the trouble."""

_log = structlog.get_logger()


def bases_to_offer(
    candidates: Iterable[int], *, version: int, max_staleness: int, publish_every: int
) -> list[int]:
    """Return which of the ``candidates`` are bases for ``version``, newest first.

    Args:
        candidates: versions from which a delta can be made.
        version: what is being published.
        max_staleness: S.
        publish_every: every so many steps there is a version.
    """
    older = sorted({c for c in candidates if c < version}, reverse=True)
    newest = older[: min(max_staleness + 1, MAX_DELTAS - 1)]
    # One that has just become an anchor is among the newest; until it no longer is, the
    # anchor before it stays, and nobody is left half way.
    anchors = [v for v in older[len(newest) :] if v % (PUBLISHES_PER_ANCHOR * publish_every) == 0]
    return newest + anchors[:1]


@asynccontextmanager
async def offer_deltas(
    library: VersionLibrary,
    *,
    version: PolicyVersion,
    weights: Payload,
    max_staleness: int,
    publish_every: int,
) -> AsyncIterator[tuple[Delta, ...]]:
    """Make the deltas for ``version``; they are pinned while the context lasts.

    What can't be made is not offered: the weights whole are there in any case.
    """
    with ExitStack() as pins:
        maker = _Maker(library, version, weights, pins)
        try:
            deltas = await maker.make(max_staleness, publish_every)
        except (StoreError, BadDeltaError, OSError) as exc:
            _log.warning("deltas.not_offered", version=version, error=str(exc))
            deltas = ()
        yield deltas


class _Maker:
    """Makes the deltas of one version."""

    def __init__(
        self, library: VersionLibrary, version: PolicyVersion, weights: Payload, pins: ExitStack
    ) -> None:
        self._library = library
        self._store = library.store
        self._version = version
        self._weights = weights
        self._pins = pins
        self._folder = library.store.folder / "deltas"
        self._max_bytes = int(MAX_SHARE * weights.ref.size_bytes)
        self._limiter = trio.CapacityLimiter(1)

    async def make(self, max_staleness: int, publish_every: int) -> tuple[Delta, ...]:
        """Make all that are wanted and possible, newest base first."""
        before = self._version_before()
        if before is None:
            return ()
        chained = {d.base_version: d for d in before.manifest.deltas if self._is_usable(d)}
        bases = bases_to_offer(
            (before.version, *chained),
            version=self._version,
            max_staleness=max_staleness,
            publish_every=publish_every,
        )
        await self._clear()
        try:
            with self._library.pin(before.version):
                step = await self._step_from(before)
                if step is None:
                    return ()
                deltas = [self._delta(before.version, before.manifest.weights.root_sha256, step)]
                for base in bases:
                    root = chained[base].base_root_sha256 if base in chained else b""
                    if not root or root == self._weights.root:
                        continue  # the step itself; or it is back where it was
                    payload = await self._merged(chained[base], step)
                    if payload is not None:
                        deltas.append(self._delta(base, root, payload))
        finally:
            await self._clear()
        return tuple(deltas)

    def _version_before(self) -> HeldVersion | None:
        """Return the newest older version held whose weights have the same shape and others."""
        older = [v for v in self._library.versions if v < self._version]
        before = self._library.get(older[-1]) if older else None
        if before is None or before.manifest.weights.root_sha256 == self._weights.root:
            return None
        renamed = msgspec.structs.replace(before.manifest.weights, root_sha256=self._weights.root)
        return before if renamed == self._weights.ref else None

    def _is_usable(self, delta: Delta) -> bool:
        payload = self._store.get(delta.payload.root_sha256)
        return delta.codec == CODEC and payload is not None and payload.is_complete

    async def _step_from(self, before: HeldVersion) -> Payload | None:
        old = [before.weights / file.name for file in before.manifest.weights.files]
        new = [self._weights.files / file.name for file in self._weights.ref.files]
        word_bytes = await trio.to_thread.run_sync(word_bytes_of, new[0], limiter=self._limiter)
        return await self._made(
            before.version,
            lambda target: diff(
                old,
                new,
                target,
                size_bytes=self._weights.ref.size_bytes,
                word_bytes=word_bytes,
                base_root=before.manifest.weights.root_sha256,
                result_root=self._weights.root,
                max_bytes=self._max_bytes,
            ),
        )

    async def _merged(self, older: Delta, step: Payload) -> Payload | None:
        payload = self._store.get(older.payload.root_sha256)
        if payload is None:
            return None
        with self._store.pin(payload.root):
            first, second = _file_of(payload), _file_of(step)
            return await self._made(
                older.base_version,
                lambda target: compose(first, second, target, max_bytes=self._max_bytes),
            )

    async def _made(
        self, base: int, work: Callable[[Path], Generator[None, None, None]]
    ) -> Payload | None:
        target = self._folder / f"{base}-{self._version}.{CODEC}"
        try:
            await run_in_steps(work(target), limiter=self._limiter)
        except TooLargeError as exc:
            _log.info("delta.too_large", version=self._version, base=base, detail=str(exc))
            return None
        payload, _ = await self._store.adopt([target])
        self._pins.enter_context(self._store.pin(payload.root))
        return payload

    def _delta(self, base: int, base_root: bytes, payload: Payload) -> Delta:
        return Delta(base, base_root, CODEC, payload.ref)

    async def _clear(self) -> None:
        """Begin, and end, without files of an earlier attempt."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_make_empty, self._folder, limiter=self._limiter)


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _file_of(payload: Payload) -> Path:
    return payload.files / payload.ref.files[0].name
