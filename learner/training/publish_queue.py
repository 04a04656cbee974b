"""Takes over each finished update: publishes its weights, writes its line of metrics.

Publishing (hashing, signing, gossip) goes on beside the next update, one version at a
time and in order; a publication that takes longer than an update holds the trainer up.
"""

import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.system.change_event import ChangeEvent
from echo2swarm.system.jsonl import JsonLines
from learner.ledger.ledger import Ledger
from learner.state.node_table import NodeTable
from learner.training.ports import Publisher
from learner.training.training_loop import StepDone
from learner.training.wait_for_disk import when_there_is_room
from protocols.ids import PolicyVersion

log = structlog.get_logger()


class PublishQueue:
    """The queue between the trainer and the broadcast."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        dispatcher: Dispatcher,
        nodes: NodeTable,
        ledger: Ledger,
        changes: ChangeEvent,
        metrics: JsonLines,
    ) -> None:
        self._publisher = publisher
        self._dispatcher = dispatcher
        self._nodes = nodes
        self._ledger = ledger
        self._changes = changes
        self._metrics = metrics
        self._todo_send, self._todo = trio.open_memory_channel[StepDone](1)
        self._num_open = 0

    async def hand_on(self, done: StepDone) -> None:
        """Queue a finished update; waits while one more is queued already."""
        self._num_open += 1
        await self._todo_send.send(done)

    async def run(self) -> None:
        """Publish what is handed on, in order."""
        async for done in self._todo:
            trained_unix_s = done.metrics["unix_s"]
            if done.snapshot is not None:
                await self.publish(done.step, done.snapshot)
                done.metrics["unix_s"] = time.time()
                done.metrics["publish_s"] = done.metrics["unix_s"] - trained_unix_s
            self._write(done.metrics)
            self._num_open -= 1
            self._changes.notify()

    async def wait_idle(self) -> None:
        """Return when everything handed on is published."""
        while self._num_open:
            await self._changes.next_change.wait()

    async def publish(
        self, step: int, snapshot: Path, *, expected_sha256: bytes | None = None
    ) -> None:
        """Publish the weights after ``step`` updates; from then on work is leased for them.

        Args:
            step: the version.
            snapshot: its weights; deleted afterwards.
            expected_sha256: of the weights, if this version was published before a crash.
        """
        version = PolicyVersion(step)
        self._nodes.published(version, trio.current_time())
        published = await when_there_is_room(
            "version", partial(self._publisher.prepare, version, snapshot)
        )
        self._nodes.update_bytes = published.update_bytes
        if expected_sha256 not in (None, published.weights_sha256):
            # Some GPU kernels add up in any order. Nodes that hold the version of before keep
            # it; their behaviour logprobs are their own, so training stays right.
            log.warning(
                "version.differs",
                version=version,
                why="the replayed updates came out differently than before the crash",
            )
        # Before anybody can have it, or a node that is quick would be taken for a liar.
        self._dispatcher.version_published(version, trio.current_time())
        await self._publisher.announce(version)
        self._changes.notify()
        await self._ledger.published(
            version,
            weights_sha256=published.weights_sha256,
            size_bytes=published.size_bytes,
            now_unix_s=time.time(),
        )
        await trio.to_thread.run_sync(partial(shutil.rmtree, snapshot, ignore_errors=True))

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._metrics.write(record)
        except OSError as exc:
            # The ledger stops a run on a full disk; a lost line of metrics does not.
            log.error("metrics.not_written", step=record["step"], error=exc.strerror)
