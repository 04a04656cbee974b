"""Ask a learner for the state of its run: over the network, or from its run directory.

Specification: ``docs/specs/status.md``.
"""

from pathlib import Path
from typing import Final

import msgspec
import trio

from echo2swarm.network.addresses import group_by_peer
from echo2swarm.network.base import Network, PeerInfo
from echo2swarm.network.rpc import call_remote
from echo2swarm.system.errors import NetworkError, StoreError, UsageError
from protocols import advert
from protocols.errors import MalformedMessageError, RemoteProtocolError
from protocols.ids import PeerId
from protocols.reasons import Reason
from protocols.status import CALL, StatusReply, StatusRequest
from protocols.ticket import Ticket

STATUS_FILE: Final = "status.json"

_CONNECT_TIMEOUT_S: Final = 5.0
_DHT: Final = "the DHT"


class StatusClient:
    """Knows the way to a learner, and asks it."""

    def __init__(self, network: Network, ticket: Ticket) -> None:
        self._network = network
        self._ticket = ticket

    async def ask(self, *, timeout_s: float) -> StatusReply:
        """Return the learner's answer, connecting to it first where need be.

        Raises:
            NetworkError: the learner can't be found, or does not answer in time.
            RemoteProtocolError: what it answers is not a status of this run.
        """
        run, learner = self._ticket.run_id, self._ticket.learner_peer
        try:
            with trio.fail_after(timeout_s):
                await self._reach(learner)
                reply = await call_remote(
                    self._network, learner, CALL, StatusRequest(run), timeout_s=timeout_s
                )
        except trio.TooSlowError:
            raise NetworkError(
                f"the learner of run {run!r} did not answer within {timeout_s:g} s; is it running?"
            ) from None
        if reply.run_id != run:
            raise MalformedMessageError(
                f"asked for run {run!r}, got the status of {reply.run_id!r}",
                reason=Reason.WRONG_RUN,
            )
        return reply

    async def _reach(self, learner: PeerId) -> None:
        """Connect to the learner: at the ticket's addresses, else where the DHT says it is."""
        if learner in self._network.connected_peers():
            return
        failures: list[str] = []
        for info in group_by_peer(self._ticket.addresses):
            await self._try(info, failures)
            if learner in self._network.connected_peers():
                return
        if self._network.connected_peers():
            # The learner has moved; those who take part know where to.
            for found in (await self._network.find_peer(learner), await self._advertised(learner)):
                if found is not None and await self._try(found, failures, told_by=_DHT):
                    return
        reasons = "; ".join(dict.fromkeys(failures)) or "nobody whom the ticket names knows it"
        raise NetworkError(
            f"can't reach the learner of run {self._ticket.run_id!r}: {reasons}. "
            "Is it running, and this machine online?"
        )

    async def _try(
        self, info: PeerInfo, failures: list[str], *, told_by: str | None = None
    ) -> bool:
        try:
            await self._network.connect(info, timeout_s=_CONNECT_TIMEOUT_S, told_by=told_by)
        except NetworkError as exc:
            failures.append(str(exc))
            return False
        return True

    async def _advertised(self, learner: PeerId) -> PeerInfo | None:
        """Return where the learner's signed advert says it is."""
        sealed = await self._network.get_record(advert.dht_key_of(self._ticket.run, learner))
        if sealed is None:
            return None
        try:
            said = advert.verify_advert(sealed, run=self._ticket.run, peer=learner)
        except RemoteProtocolError:
            return None
        return next((i for i in group_by_peer(said.addresses) if i.peer == learner), None)


def read_status(run_dir: Path) -> StatusReply:
    """Return the status that lies in a run directory.

    Raises:
        UsageError: there is no such directory.
        StoreError: it holds no status, or a damaged one.
    """
    path = run_dir / STATUS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StatusReply)
    except FileNotFoundError:
        if not run_dir.is_dir():
            raise UsageError(f"{run_dir}: no such run directory") from None
        raise StoreError(
            f"{path}: no status yet; it is written while `echo2-learner serve` runs"
        ) from None
    except NotADirectoryError:
        raise UsageError(f"{run_dir}: not a directory") from None
    except OSError as exc:
        raise StoreError(f"can't read {path}: {exc.strerror}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreError(f"{path} is not the status of a run: {exc}") from exc
