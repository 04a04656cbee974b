"""How the parts of a node act on each other: engine events, heartbeats, owner actions."""

from collections.abc import Callable
from typing import Final

import structlog
import trio

from echo2swarm.weights.store.library import VersionLibrary
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.rate_limit import DownloadBudget, UploadBudget
from node.engine.base import EngineEvent, EngineExited, EngineReady, EngineWeakened
from node.engine.state import EngineState
from node.membership.advert import SelfAdvert
from node.membership.contact import LearnerContact
from node.membership.lifecycle import LifecycleRunner
from node.membership.link_reports import Flow, OwnCap
from node.membership.neighbours import Neighbours
from node.owner.keeper import OwnerKeeper
from node.owner.remedies import remedy_for
from node.owner.settings import OwnerSettings
from node.rollouts.worker import Worker
from protocols.heartbeat import HeartbeatReply
from protocols.ids import PolicyVersion
from protocols.lifecycle import EngineDied as EngineDiedEvent
from protocols.lifecycle import OwnerPaused, OwnerResumed

QUIET_S: Final = 2.0
"""The link is measured when nothing was transferred for this long."""

MIN_WAIT_S: Final = 0.01
"""Time is rounded: what is left of it may be too short to pass."""

log = structlog.get_logger()


class NodeParts:
    """What the node's life acts on; implements :class:`node.membership.lifecycle.Performer`."""

    def __init__(self, contact: LearnerContact, worker: Worker) -> None:
        self.announce = contact.announce
        self.take_work = worker.take_work
        self.stop_taking_work = worker.stop_taking_work
        self.hand_back = worker.hand_back
        self.pause = worker.pause
        self.drain = worker.drain
        self.engine_changed = worker.engine_changed


class EngineEvents:
    """Passes on what happens to the engine."""

    def __init__(self, life: LifecycleRunner, advert: SelfAdvert, state: EngineState) -> None:
        self._life = life
        self._advert = advert
        self._state = state

    def take(self, event: EngineEvent) -> None:
        """Take in one event."""
        self._state.take(event)
        match event:
            case EngineReady(description):
                self._advert.describe_engine(description)
            case EngineExited(why):
                if remedy := remedy_for(why):
                    log.warning("engine.remedy", remedy=remedy)
                self._life.happened(EngineDiedEvent(why))
            case EngineWeakened(why):
                if remedy := remedy_for(why):
                    log.warning("engine.remedy", remedy=remedy)
        self._life.engine_changed()


class ReplyActions:
    """What follows from the learner's answers to heartbeats, apart from the lifecycle."""

    def __init__(
        self,
        *,
        own_cap: OwnCap,
        flow: Flow,
        sync: PolicySync,
        worker: Worker,
        neighbours: Neighbours,
    ) -> None:
        self._own_cap = own_cap
        self._flow = flow
        self._sync = sync
        self._worker = worker
        self._neighbours = neighbours

    def take(self, reply: HeartbeatReply) -> None:
        """Take in one answer."""
        self._own_cap.look(
            trio.current_time(),
            measured_bytes_per_s=reply.upload_bytes_per_s,
            sending_s=self._flow.sending_s,
        )
        self._sync.hint(PolicyVersion(reply.newest_version))
        self._worker.step_heard(reply.learner_step)
        self._neighbours.named(reply.neighbours)


class QuietLink:
    """When a node holds a version and transfers nothing: :class:`node.membership.link_probe.Quiet`.

    Args:
        sync: what is held.
        keeper: whether the owner has paused the node.
        flow: when bytes moved last.
    """

    def __init__(self, sync: PolicySync, keeper: OwnerKeeper, flow: Flow) -> None:
        self._sync = sync
        self._keeper = keeper
        self._flow = flow

    @property
    def is_now(self) -> bool:
        """Whether it is so now."""
        return self._sync.held is not None and not self._keeper.paused and self._left_s() <= 0

    async def wait(self) -> None:
        """Return when it is so."""
        while True:
            await self._sync.next_version(None)
            change = self._keeper.changes.next_change
            if self._keeper.paused:
                await change.wait()
            elif (left_s := self._left_s()) > 0:
                await trio.sleep(max(left_s, MIN_WAIT_S))
            else:
                return

    def _left_s(self) -> float:
        return QUIET_S - self._flow.idle_s(trio.current_time())


class OwnerActions:
    """What the owner's decisions act on; implements :class:`node.owner.keeper.Obedient`."""

    def __init__(
        self,
        *,
        life: LifecycleRunner,
        worker: Worker,
        sync: PolicySync,
        library: VersionLibrary,
        upload: UploadBudget,
        download: DownloadBudget,
        stop: Callable[[], None],
    ) -> None:
        self._life = life
        self._worker = worker
        self._sync = sync
        self._library = library
        self._upload = upload
        self._download = download
        self._stop = stop

    def pause(self, *, relays: bool) -> None:
        """Take no work; pass on weights, and fetch them, only if it ``relays``."""
        self._life.happened(OwnerPaused())
        self._worker.rest(is_wanted=True)
        self._sync.rest(is_wanted=not relays)

    def resume(self) -> None:
        """Take work again."""
        self._sync.rest(is_wanted=False)
        self._worker.rest(is_wanted=False)
        self._life.happened(OwnerResumed())

    def drain(self) -> None:
        """Finish, and leave."""
        self._worker.rest(is_wanted=False)
        self._stop()

    def limit(self, settings: OwnerSettings) -> None:
        """Keep to these limits from now on."""
        if settings.upload_bytes_per_s != self._upload.max_bytes_per_s:
            self._upload.allow(settings.upload_bytes_per_s)
        self._download.allow(settings.download_bytes_per_s, trio.current_time())
        self._library.quota_bytes = settings.disk_bytes
