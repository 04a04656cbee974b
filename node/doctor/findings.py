"""What the facts about a machine mean for its owner: pass, warn or fail, and what to do. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, isfinite
from typing import Final

from echo2swarm.system.extras import install_command, install_extra
from echo2swarm.text.format import format_bytes, format_mbit, format_rate, format_seconds
from node.doctor.router import Router
from node.owner.remedies import remedy_for
from protocols.status import Reachability

RESERVE_BYTES: Final = 64 * 1024 * 1024
"""Of the disk, that a node leaves to others."""
MIN_SPARE_BYTES: Final = 1_000_000_000
CLOCK_TOLERANCE_S: Final = 5.0
SLOW_UPLOAD_BYTES_PER_S: Final = 250_000.0
MODEL_OVERHEAD: Final = 1.2
"""Weights in memory, and what is computed with them."""
CACHE_BYTES: Final = 500_000_000
"""For the cache and the runtime, at the least."""


class Severity(StrEnum):
    """How bad it is."""

    PASS = "pass"  # noqa: S105 - not a password
    WARN = "warn"
    """It works, but worse than it could, or perhaps not."""
    FAIL = "fail"
    """It would not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line."""

    name: str
    verdict: Severity
    text: str
    remedy: str = ""
    """What to do; empty if there is nothing to do."""


def _passed(name: str, text: str) -> Finding:
    return Finding(name=name, verdict=Severity.PASS, text=text)


def _warned(name: str, text: str, remedy: str) -> Finding:
    return Finding(name=name, verdict=Severity.WARN, text=text, remedy=remedy)


def _failed(name: str, text: str, remedy: str) -> Finding:
    return Finding(name=name, verdict=Severity.FAIL, text=text, remedy=remedy)


# The machine.


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package that is needed."""

    name: str
    wanted: str
    """As in ``>=2.6``; empty for any."""
    found: str | None
    is_right: bool


def judge_packages(python: str, packages: Sequence[Package], *, extra: str) -> Finding:
    """Judge the versions of what is installed."""
    missing = [p.name for p in packages if p.found is None]
    wrong = [
        f"{p.name} {p.found} (wants {p.wanted})" for p in packages if p.found and not p.is_right
    ]
    install = install_extra(extra) if extra else f"run: {install_command()}"
    if missing:
        return _failed("software", f"not installed: {', '.join(missing)}", install)
    if wrong:
        return _warned("software", f"other versions than tested: {', '.join(wrong)}", install)
    return _passed("software", f"Python {python}, {len(packages)} packages as wanted")


def judge_state_dir(problem: str) -> Finding:
    """Judge whether the state directory can be written."""
    if problem:
        return _failed("state folder", problem, "name another with --state-dir")
    return _passed("state folder", "can be written, by you alone")


def judge_disk(free_bytes: int, *, needed_bytes: int | None, quota_bytes: int | None) -> Finding:
    """Judge the disk.

    Args:
        free_bytes: on the disk, with what the node's own weights take already.
        needed_bytes: for the run's model; None if that is not known.
        quota_bytes: what the owner allows.
    """
    have = f"{format_bytes(free_bytes)} free"
    usable_bytes, kept = free_bytes - RESERVE_BYTES, f"{format_bytes(RESERVE_BYTES)} stay free"
    if needed_bytes is None:
        if usable_bytes <= 0:
            return _failed(
                "disk",
                f"{have}, but {kept} in any case",
                "free some space, or name another disk with --state-dir",
            )
        if usable_bytes < MIN_SPARE_BYTES:
            return _warned("disk", f"{have}, little for a model", "free some space")
        return _passed("disk", have)
    need = f"this model takes {format_bytes(needed_bytes)}"
    if quota_bytes is not None and needed_bytes > quota_bytes:
        return _failed(
            "disk",
            f"{need}, the quota is {format_bytes(quota_bytes)}",
            f"--disk-gb {ceil(needed_bytes / 1e9)}, or a run with a smaller model",
        )
    if needed_bytes > usable_bytes:
        short_bytes = needed_bytes - usable_bytes
        return _failed(
            "disk",
            f"{have}, but {need}, and {kept}",
            f"free {format_bytes(short_bytes)}, or name another disk with --state-dir",
        )
    return _passed("disk", f"{have}; {need}")


def judge_device(device: str, drivers: Sequence[str]) -> Finding:
    """Judge whether the device that was asked for can be there at all.

    Args:
        device: as given: "cuda:1", say.
        drivers: signs of a GPU driver that were found on this machine.
    """
    if device.startswith("cuda") and not drivers:
        return _failed(
            "device",
            f"{device} was asked for, but this machine has no GPU driver",
            "leave --device out to use the CPU, or install the driver",
        )
    return _passed("device", f"{device}{' by ' if drivers else ''}{', '.join(drivers)}")


def judge_gpu(
    name: str | None, *, driver: str, total_bytes: int, free_bytes: int, model_bytes: int | None
) -> Finding:
    """Judge the GPU; None stands for a machine on which none was seen."""
    if name is None:
        return _warned(
            "GPU",
            f"none seen ({driver})" if driver else "none seen",
            "without one the engine computes on the CPU, which is slow but works",
        )
    what = (
        f"{name}, driver {driver}, {format_bytes(free_bytes)} of {format_bytes(total_bytes)} free"
    )
    if model_bytes is None:
        return _passed("GPU", what)
    needed_bytes = needed_memory_bytes(model_bytes)
    if needed_bytes > total_bytes:
        return _failed(
            "GPU",
            f"{what}; the model needs about {format_bytes(needed_bytes)}",
            "a GPU with more memory, several with --engine-option tensor_parallel=N, "
            "or a run with a smaller model",
        )
    if needed_bytes > free_bytes:
        return _warned(
            "GPU",
            f"{what}; the model needs about {format_bytes(needed_bytes)}",
            "end other programs on the GPU",
        )
    return _passed("GPU", f"{what}; the model needs about {format_bytes(needed_bytes)}")


def judge_memory(available_bytes: int | None, *, model_bytes: int | None) -> Finding:
    """Judge the machine's memory, for an engine on the CPU."""
    if available_bytes is None:
        return _warned("memory", "can't be told on this system", "see that the model fits")
    have = f"{format_bytes(available_bytes)} available"
    if model_bytes is None:
        return _passed("memory", have)
    # On a CPU, 16-bit weights may be computed with in 32.
    needed_bytes = needed_memory_bytes(2 * model_bytes)
    if needed_bytes > available_bytes:
        return _failed(
            "memory",
            f"{have}; the model may need {format_bytes(needed_bytes)}",
            "more memory, or a run with a smaller model",
        )
    return _passed("memory", f"{have}; the model may need {format_bytes(needed_bytes)}")


def needed_memory_bytes(model_bytes: int) -> int:
    """Return about how much memory an engine needs for a model."""
    return int(MODEL_OVERHEAD * model_bytes) + CACHE_BYTES


# The run.


def judge_learner(problem: str, *, phase: str, round_trip_s: float | None) -> Finding:
    """Judge whether the learner answers."""
    if problem:
        return _failed(
            "learner",
            problem,
            "check that this machine is online; ask the run owner whether the learner runs, and "
            "whether its port is open",
        )
    if phase in {"finished", "failed"}:
        return _failed("learner", f"the run has {phase}", "ask the run owner for another ticket")
    return _passed("learner", f"answers in {format_seconds(round_trip_s)}; it is {phase}")


def judge_clock(skew_s: float, *, uncertainty_s: float) -> Finding:
    """Judge our clock against the learner's; nothing that a node does depends on it.

    Args:
        skew_s: ours minus theirs.
        uncertainty_s: half of the round trip in which that was measured.
    """
    if abs(skew_s) <= CLOCK_TOLERANCE_S + uncertainty_s:
        return _passed("clock", f"within {format_seconds(abs(skew_s) + uncertainty_s)}")
    where = "ahead of" if skew_s > 0 else "behind"
    return _warned(
        "clock",
        f"{format_seconds(abs(skew_s))} {where} the learner's; the node works all the same",
        "set it, or switch on time synchronisation (timedatectl set-ntp true); --hours and "
        "tickets go by it",
    )


def judge_reach(
    addresses: Sequence[str],
    *,
    reachability: Reachability,
    is_public: bool,
    router: Router | None = None,
) -> Finding:
    """Judge whether others can dial this machine.

    Args:
        addresses: its own, towards the learner.
        reachability: what the learner knows of it.
        is_public: whether one of the addresses is a public one.
        router: what the learner sees in place of them.
    """
    where = ", ".join(addresses) or "no address"
    remedy = "works all the same; to serve others too, forward a port: docs/nat.md"
    if router is not None:
        where += f", seen as {router.host}"
        if router.keeps_ports:
            where += "; the router keeps ports, so that most other nodes can be met"
        else:
            where += "; the router changes ports, so that nodes behind others can't be met"
    match reachability:
        case Reachability.YES:
            return _passed("reachable", f"other nodes have connected to this one ({where})")
        case Reachability.NO:
            return _warned("reachable", f"other nodes tried and could not ({where})", remedy)
        case Reachability.UNKNOWN:
            if is_public and router is None:
                return _passed("reachable", f"a public address ({where}); not tried yet")
            doubt = "" if router else ", as it seems"
            return _warned("reachable", f"behind a router{doubt} ({where})", remedy)


def judge_link(up_bytes_per_s: float | None, down_bytes_per_s: float | None, why: str) -> Finding:
    """Judge the line, as it was measured with the learner."""
    if up_bytes_per_s is None or down_bytes_per_s is None:
        return _warned("link", f"not measured: {why}", "the node measures it when it has joined")
    text = f"{format_mbit(up_bytes_per_s)} up, {format_mbit(down_bytes_per_s)} down (Mbit/s)"
    if min(up_bytes_per_s, down_bytes_per_s) < SLOW_UPLOAD_BYTES_PER_S:
        return _warned("link", text, "slow: versions arrive late; a cable instead of radio helps")
    return _passed("link", text)


def judge_engine(problem: str, *, tokens_per_s: float | None, with_what: str) -> Finding:
    """Judge the engine."""
    if problem:
        remedy = remedy_for(problem) or "its own words are above; docs/troubleshooting.md has more"
        return _failed("engine", problem, remedy)
    return _passed("engine", f"{format_rate(tokens_per_s)} tokens/s with {with_what}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What the run would have of this machine."""

    late_versions: int
    """Age of its rollouts when they would be used, in optimizer steps."""
    max_staleness: int
    broadcast_s: float
    rollout_s: float
    step_s: float
    rollouts_per_s: float
    required_rollouts_per_s: float | None
    wasted_share: float = 0.0
    """Of rollouts, what would come too late if nobody waited."""


def judge_prospect(prospect: Prospect | None, *, missing: str) -> Finding:
    """Judge whether its rollouts would be in time."""
    if prospect is None:
        return _warned("forecast", f"not possible: {missing}", "join; the learner will find out")
    p = prospect
    age = f"{p.late_versions} version{'' if p.late_versions == 1 else 's'} late"
    share = ""
    if p.required_rollouts_per_s and isfinite(p.required_rollouts_per_s):
        share = f", {p.rollouts_per_s / p.required_rollouts_per_s:.0%} of what the run needs"
    times = (
        f"{format_seconds(p.broadcast_s)} to get a version, {format_seconds(p.rollout_s)} for a "
        f"lease, {format_seconds(p.step_s)} a step"
    )
    text = f"rollouts would arrive {age}, the bound is {p.max_staleness}"
    if p.wasted_share >= 0.01:
        share += f", {p.wasted_share:.0%} of its rollouts too late unless it is paced"
    if p.late_versions <= p.max_staleness:
        return _passed("forecast", f"{text}: useful ({times}{share})")
    slow_link = p.broadcast_s > p.rollout_s
    remedy = (
        "a faster line, or a larger --download-mbit"
        if slow_link
        else "a faster GPU or engine (--engine vllm), or a larger --max-batch"
    )
    return _warned("forecast", f"{text}: not useful ({times})", remedy)


def worst_of(findings: Iterable[Finding]) -> Severity:
    """Return the worst verdict."""
    order = (Severity.PASS, Severity.WARN, Severity.FAIL)
    return max((finding.verdict for finding in findings), key=order.index, default=Severity.PASS)
