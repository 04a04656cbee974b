"""Tell what happens in a run while it happens, one line each.

Pure: what the learner says of itself goes in, lines come out.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rich.text import Text

from echo2swarm.report.run_record import StepRecord
from echo2swarm.system.rates import LearnerPhase
from echo2swarm.text.format import bar, format_bytes, format_seconds, printable
from protocols.heartbeat import NodeState
from protocols.status import NodeStatus, StatusReply

SILENCE_S: Final = 10.0
_BAR_WIDTH: Final = 20
_STATE_WORDS: Final = {
    NodeState.JOINING: "joins",
    NodeState.SYNCING: "fetches the weights",
    NodeState.STANDBY: "is ready",
    NodeState.ACTIVE: "generates",
    NodeState.DRAINING: "finishes its work",
    NodeState.LEFT: "has left",
    NodeState.PAUSED: "is paused by its owner",
}


class Narrator:
    """Compares each look at the run with the last one."""

    def __init__(self, *, num_steps: int, ascii_only: bool) -> None:
        self._num_steps = num_steps
        self._ascii_only = ascii_only
        self._nodes: dict[str, NodeStatus] = {}
        self._num_refused: Counter[str] = Counter()
        self._told_version = -1
        self._bytes_at_last_version: Counter[str] = Counter()
        self._step_end_s: list[float] = []

    def nodes(self, status: StatusReply) -> list[Text]:
        """Tell which nodes came, went, or changed what they do, and what was refused."""
        lines: list[Text] = []
        for node in status.nodes:
            before = self._nodes.get(node.peer_id)
            lines += self._node(before, node)
            # What comes in after the last update is refused, and that is nobody's fault.
            if status.learner_step < status.num_steps:
                lines += self._refusals(node)
            self._nodes[node.peer_id] = node
        return lines

    def version(self, status: StatusReply) -> list[Text]:
        """Tell when all present nodes sample with a newer version, and who sent it to whom."""
        present = [
            n
            for n in status.nodes
            if n.is_connected and n.state in (NodeState.ACTIVE, NodeState.STANDBY)
        ]
        reached = min(
            (n.applied_version for n in present if n.applied_version is not None), default=-1
        )
        if reached <= self._told_version or any(n.applied_version is None for n in present):
            return []
        self._told_version = reached
        sent = Counter({"learner": status.payload_bytes_sent})
        for n in status.nodes:
            sent[printable(n.name, max_chars=16)] += n.payload_bytes_sent
        delta = sent - self._bytes_at_last_version
        self._bytes_at_last_version = sent
        spread = max((n.broadcast_s for n in present if n.broadcast_s is not None), default=None)
        who = ", ".join(f"{name} {format_bytes(num)}" for name, num in delta.most_common())
        return [
            Text.assemble(
                ("version ", "cyan"),
                (f"{reached:>3}", "bold cyan"),
                f" at {len(present)} {'node' if len(present) == 1 else 'nodes'}",
                f" after {format_seconds(spread)}" if spread is not None else "",
                (f"   sent: {who}" if who else "", "dim"),
            )
        ]

    def step(self, step: StepRecord) -> Text:
        """Tell of one update."""
        self._step_end_s.append(step.end_s)
        reward = step.reward_mean
        return Text.assemble(
            ("step ", "green"),
            (f"{step.step:>3}", "bold green"),
            f"/{self._num_steps}  ",
            (bar(reward or 0.0, width=_BAR_WIDTH, ascii_only=self._ascii_only), "green"),
            (f" {reward:.3f}" if reward is not None else "     -", "bold"),
            f"  waited {format_seconds(step.wait_s):>6}  trained {format_seconds(step.train_s):>6}",
            (_staleness(step), "dim"),
            (self._time_to_go(), "dim"),
        )

    def silence(self, status: StatusReply, *, silent_s: float) -> list[Text]:
        """Tell what is waited for, where nothing has been told for so long."""
        if silent_s < SILENCE_S or status.learner_step >= self._num_steps:
            return []
        num_wanted = status.rollouts_per_step
        num_here = min(status.num_buffered, num_wanted)
        what = f"step {status.learner_step + 1:>3}: {printable(status.phase, max_chars=20)}"
        if status.phase == LearnerPhase.WAITING:
            what += f", {num_here} of {num_wanted} rollouts are here"
        return [Text(what, style="dim")]

    def _node(self, before: NodeStatus | None, node: NodeStatus) -> Iterable[Text]:
        name = printable(node.name, max_chars=16)
        if before is None or before.state is not node.state:
            what = _STATE_WORDS[node.state]
            if before is None:
                device = f" on {node.device}" if node.device else ""
                what += f" ({printable(node.engine + device, max_chars=60)})"
            yield Text.assemble((f"{name} ", "magenta"), what)
        if before is not None and before.is_connected is not node.is_connected:
            if node.is_connected:
                yield Text.assemble((f"{name} ", "magenta"), "is back")
            elif node.state is not NodeState.LEFT:
                yield Text.assemble((f"{name} ", "magenta"), ("is silent", "bold red"))
        if before is not None and node.num_engine_restarts > before.num_engine_restarts:
            yield Text.assemble((f"{name} ", "magenta"), ("restarted its engine", "yellow"))

    def _refusals(self, node: NodeStatus) -> Iterable[Text]:
        num_refused = sum(r.count for r in node.refusals)
        if num_refused > self._num_refused[node.peer_id]:
            num_new = num_refused - self._num_refused[node.peer_id]
            self._num_refused[node.peer_id] = num_refused
            last = printable(node.last_refusal, max_chars=100)
            name = printable(node.name, max_chars=16)
            yield Text.assemble((f"{name} ", "magenta"), (f"{num_new} refused: {last}", "yellow"))

    def _time_to_go(self) -> str:
        num_left = self._num_steps - len(self._step_end_s)
        recent = self._step_end_s[-6:]
        if num_left <= 0 or len(recent) < 2:
            return ""
        pace_s = (recent[-1] - recent[0]) / (len(recent) - 1)
        return f"  {format_seconds(num_left * pace_s)} to go"


def _staleness(step: StepRecord) -> str:
    return (
        "  stale " + " ".join(f"{age}:{num}" for age, num in step.staleness)
        if step.staleness
        else ""
    )
