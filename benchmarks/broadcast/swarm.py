"""One run of one case with the swarm's own processes."""

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio

from benchmarks.broadcast.cases import Case
from benchmarks.broadcast.children import Child, ChildError
from benchmarks.wan import Wan, open_wan

START_S: Final = 60.0
"""A process has imported everything and listens within this."""
CONNECT_S: Final = 60.0
SETTLE_S: Final = 2.0
"""Between the last connection and the publication: gossip forms its mesh."""
POLL_S: Final = 0.1
PATIENCE: Final = 6.0
"""A run is given up after so many times the least time."""
_MODULE: Final = "benchmarks.broadcast.participant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run of one case came to."""

    last_s: float
    """From the publication until the last honest living peer holds and has verified all."""
    finish_s: tuple[float | None, ...]
    """The same for each peer; None for those that were killed."""
    copies: float
    """Payload bytes that the learner sent, in copies of the payload."""
    link_sent_bytes: tuple[int, ...]
    """What each host sent, headers included; the learner first."""
    cpu_s: tuple[float, ...]
    max_rss_mb: tuple[float, ...]
    learner_was_away_s: float | None = None
    """From its killing until it listened again, where that was tried."""
    faults: tuple[str, ...] = ()
    """What honest peers accused others of."""
    timeline: tuple[tuple[tuple[float, int], ...], ...] = field(default=(), repr=False)
    """For each peer: seconds since the publication, and bytes held then."""
    learner_timeline: tuple[tuple[float, int], ...] = field(default=(), repr=False)
    """Seconds since the publication, and payload bytes that the learner had sent by then."""

    @property
    def first_s(self) -> float:
        """From the publication until somebody held some of it, to a quarter of a second."""
        return min((at for line in self.timeline for at, held in line if held), default=self.last_s)

    @property
    def summary(self) -> str:
        """The rest of it, for people."""
        cpu_s = sum(self.cpu_s) / len(self.cpu_s)
        parts = [f"{self.copies:.2f} copies from the learner", f"{cpu_s:.1f} s CPU a process"]
        if self.learner_was_away_s is not None:
            parts.append(
                f"complete although the learner was away for {self.learner_was_away_s:.1f} s"
            )
        return "; ".join([*parts, *self.faults])


async def run_swarm(case: Case, *, is_star: bool = False, is_urgent: bool = False) -> Run:
    """Let one version travel through a fresh swarm.

    Args:
        case: which swarm, and what happens to it.
        is_star: only the learner serves.
        is_urgent: go before whatever else the machine does.

    Raises:
        ChildError: a process died, or the version did not arrive in good time.
        WanError: the links cannot be emulated here.
    """
    with (
        tempfile.TemporaryDirectory(prefix="echo2-broadcast-") as folder,
        open_wan(case.links) as wan,
    ):
        async with trio.open_nursery() as nursery:
            swarm = _Swarm(case, wan, Path(folder), nursery, is_star=is_star, is_urgent=is_urgent)
            result = await swarm.measure()
            nursery.cancel_scope.cancel()
    return result


class _Swarm:
    def __init__(
        self,
        case: Case,
        wan: Wan,
        folder: Path,
        nursery: trio.Nursery,
        *,
        is_star: bool,
        is_urgent: bool,
    ) -> None:
        self._case = case
        self._wan = wan
        self._folder = folder
        self._nursery = nursery
        self._is_star = is_star
        self._is_urgent = is_urgent
        self._payload_sent_before_bytes = 0
        self._learner_was_away_s: float | None = None

    async def measure(self) -> Run:
        learner = await self._start_learner()
        peers = await self._start_peers(learner)
        await self._connect(learner, peers)
        await trio.sleep(SETTLE_S)
        await self._open_streams(learner, peers)
        sent_before = [self._wan.counters(host).sent_bytes for host in range(1 + len(peers))]
        await learner.tell("publish")
        start_s = float((await learner.hear("published", within_s=START_S))["at_s"])
        learner = await self._disturb(start_s, learner, peers)
        deadline_s = PATIENCE * self._case.least_s * (len(peers) if self._is_star else 1) + 10
        for number in self._case.honest:
            left_s = start_s + deadline_s - time.monotonic()
            await peers[number].hear("held", within_s=left_s)
        sent_bytes = [
            self._wan.counters(host).sent_bytes - before for host, before in enumerate(sent_before)
        ]
        await trio.sleep(0.3)  # one more tick of each
        faults = await self._faults(peers)
        finish_s = tuple(_finish_s(child, start_s) for child in peers)
        everybody = (learner, *peers)
        return Run(
            last_s=max(finish_s[number] or 0.0 for number in self._case.honest),
            finish_s=finish_s,
            copies=(self._payload_sent_before_bytes + learner.last("payload_sent_bytes"))
            / self._case.size_bytes,
            link_sent_bytes=tuple(sent_bytes),
            cpu_s=tuple(child.last("cpu_s") for child in everybody),
            max_rss_mb=tuple(child.last("max_rss_mb") for child in everybody),
            learner_was_away_s=self._learner_was_away_s,
            faults=faults,
            timeline=tuple(_timeline(child, start_s, "held_bytes") for child in peers),
            learner_timeline=_timeline(learner, start_s, "payload_sent_bytes"),
        )

    async def _open_streams(self, learner: Child, peers: list[Child]) -> None:
        """Have a small version travel first: a run is measured at work, not at its start."""
        await learner.tell("open")
        for child in peers:
            await child.hear("opened", within_s=START_S)
        await learner.tell("prepare")
        prepared = await learner.hear("prepared", within_s=START_S)
        self._payload_sent_before_bytes = -prepared["payload_sent_bytes"]
        await trio.sleep(SETTLE_S)

    async def _start_learner(self) -> Child:
        learner = Child("learner", self._folder / "learner.log", is_urgent=self._is_urgent)
        folder = self._folder / "learner"
        folder.mkdir(exist_ok=True)
        await self._start(learner, 0, "learner", folder, f"--bytes={self._case.size_bytes}")
        await learner.hear("ready", within_s=START_S)
        return learner

    async def _start_peers(self, learner: Child) -> list[Child]:
        peers = []
        for number in range(len(self._case.peers)):
            name = f"peer{number}"
            folder = self._folder / name
            folder.mkdir()
            child = Child(name, self._folder / f"{name}.log", is_urgent=self._is_urgent)
            role = "garbage" if number < self._case.num_garbage else "node"
            options = [f"--learner={learner.last('peer')}", *(["--star"] * self._is_star)]
            await self._start(child, number + 1, role, folder, *options)
            peers.append(child)
        for child in peers:
            await child.hear("ready", within_s=START_S)
        return peers

    async def _start(self, child: Child, host: int, role: str, folder: Path, *options: str) -> None:
        arguments = ["-m", _MODULE, role, str(folder), self._wan.address(host), *options]
        await self._nursery.start(child.run, self._wan, host, arguments)

    async def _connect(self, learner: Child, peers: list[Child]) -> None:
        """Have everybody dial the learner, and one of each two peers the other."""
        for number, child in enumerate(peers):
            others = [peers[other] for other in self._dialled_by(number)]
            to = [each.last("address") for each in (learner, *([] if self._is_star else others))]
            await child.tell("connect", to=to)
        for child in peers:
            await child.hear("connected", within_s=CONNECT_S)

    def _dialled_by(self, number: int) -> list[int]:
        links = self._case.peers
        return [
            other
            for other, link in enumerate(links)
            if link.accepts_inbound
            and (other < number or (other > number and not links[number].accepts_inbound))
        ]

    async def _disturb(self, start_s: float, learner: Child, peers: list[Child]) -> Child:
        """Do to the swarm what the case is about; returns the learner's process from then on."""
        case = self._case
        if not (case.num_killed or case.restarts_learner):
            return learner
        await self._third(start_s, peers)
        for child in peers[len(peers) - case.num_killed :]:
            child.kill()
        if not case.restarts_learner:
            return learner
        learner.kill()
        killed_s = time.monotonic()
        self._payload_sent_before_bytes += learner.last("payload_sent_bytes")
        learner = await self._start_learner()
        self._learner_was_away_s = round(time.monotonic() - killed_s, 2)
        return learner

    async def _third(self, start_s: float, peers: list[Child]) -> None:
        """Wait until half of the peers hold a third of the payload."""
        within_s = start_s + PATIENCE * self._case.least_s - time.monotonic()
        with trio.move_on_after(within_s):
            third_bytes = self._case.size_bytes / 3
            while median(child.last("held_bytes") for child in peers) < third_bytes:  # noqa: ASYNC110
                await trio.sleep(POLL_S)
            return
        raise ChildError(f"the peers do not hold a third of the payload after {within_s:.0f} s")

    async def _faults(self, peers: list[Child]) -> tuple[str, ...]:
        faults: list[str] = []
        names = {child.last("peer"): child.name for child in peers}
        for number in self._case.honest:
            child = peers[number]
            await child.tell("report")
            report = await child.hear("report", within_s=START_S)
            faults += [
                f"{child.name}: {names.get(peer, 'the learner')} {reason}"
                for peer, reason in report["faults"]
            ]
        if self._case.num_garbage and not any("bad_chunk" in fault for fault in faults):
            raise ChildError(f"nobody noticed the garbage: {faults}")
        return tuple(faults)


def _finish_s(child: Child, start_s: float) -> float | None:
    held = child.first("held")
    return None if held is None else round(held["at_s"] - start_s, 3)


def _timeline(child: Child, start_s: float, figure: str) -> tuple[tuple[float, int], ...]:
    ticks: list[dict[str, Any]] = [r for r in child.said if r["event"] == "tick"]
    return tuple(
        (round(tick["at_s"] - start_s, 2), tick[figure])
        for tick in ticks
        if tick["at_s"] >= start_s
    )
