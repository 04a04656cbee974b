"""How the parts of a node act on each other: its life, its engine's events, its owner's orders."""

from collections.abc import Callable

import structlog
import trio

from echo2swarm.weights.store.library import VersionLibrary
from echo2swarm.weights.sync import PolicySync
from echo2swarm.weights.transfer.rate_limit import DownloadBudget, UploadBudget
from node.control.snapshot import EngineState
from node.engine.base import EngineEvent, EngineExited, EngineReady, EngineWeakened
from node.membership.advert import SelfAdvert
from node.membership.heartbeats import HeartbeatClient
from node.membership.lifecycle import LifecycleRunner
from node.owner.remedies import remedy_for
from node.owner.settings import OwnerSettings
from node.rollouts.worker import Worker
from protocols.lifecycle import EngineDied as EngineDiedEvent
from protocols.lifecycle import OwnerPaused, OwnerResumed

log = structlog.get_logger()


class NodeParts:
    """What the node's life acts on; implements :class:`node.membership.lifecycle.Performer`."""

    def __init__(self, membership: HeartbeatClient, worker: Worker) -> None:
        self.announce = membership.announce
        self.take_work = worker.take_work
        self.stop_taking_work = worker.stop_taking_work
        self.hand_back = worker.hand_back
        self.pause = worker.pause
        self.drain = worker.drain
        self.engine_changed = worker.engine_changed


class EngineEvents:
    """Passes on what happens to the engine, which may be before the rest is there."""

    def __init__(self, life: LifecycleRunner, advert: SelfAdvert, news: EngineState) -> None:
        self._life = life
        self._advert = advert
        self._news = news
        self._parts: NodeParts | None = None

    def attach(self, parts: NodeParts) -> None:
        """Tell ``parts`` too from now on; what they missed, they see for themselves."""
        self._parts = parts

    def take(self, event: EngineEvent) -> None:
        """Take in one event."""
        self._news.take(event)
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
        if self._parts is not None:
            self._parts.engine_changed()
            self._parts.announce()


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
