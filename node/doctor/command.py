"""``echo2-node doctor``: gather facts, judge them, show the findings."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import trio
from rich.console import Console
from rich.text import Text

from echo2swarm.system.errors import StoreError, SwarmError
from echo2swarm.system.identity import load_or_create
from echo2swarm.text.format import printable
from echo2swarm.weights.store.library import quota_for
from node.control.client import NoNodeError, open_control
from node.control.messages import NodeSnapshot
from node.doctor import machine
from node.doctor.engine import EngineFacts, try_engine
from node.doctor.findings import (
    Finding,
    Severity,
    judge_clock,
    judge_disk,
    judge_engine,
    judge_learner,
    judge_link,
    judge_memory,
    judge_prospect,
    judge_reach,
    worst_of,
)
from node.doctor.forecast import prospect_of
from node.doctor.question import DoctorRequest
from node.doctor.router import router_between
from node.doctor.run import RunFacts, ask_run
from node.owner.disk import bytes_in
from protocols.ids import PeerId

_STYLES = {Severity.PASS: "green", Severity.WARN: "yellow", Severity.FAIL: "bold red"}
_NAME_WIDTH = 12


def examine(question: DoctorRequest, *, as_json: bool) -> bool:
    """Examine the machine, and show what comes of it; return whether nothing fails."""
    return trio.run(_examine, question, as_json)


async def _examine(question: DoctorRequest, as_json: bool) -> bool:
    console = Console(highlight=False, soft_wrap=True)
    findings: list[Finding] = []
    async for finding in findings_about(question):
        findings.append(finding)
        if not as_json:
            _show(console, finding)
    if as_json:
        sys.stdout.write(msgspec.json.encode(findings).decode() + "\n")
        sys.stdout.flush()
    return worst_of(findings) is not Severity.FAIL


async def findings_about(question: DoctorRequest) -> AsyncIterator[Finding]:
    """Yield the findings, each as soon as it is there."""
    yield machine.examine_software(question.engine_kind)
    yield machine.examine_state_dir(question.state_dir)
    running = await _running(question.state_dir)
    facts: RunFacts | None = None
    if question.ticket is not None:
        own_peer = _own_peer(question.state_dir) if running is None else PeerId(running.peer_id)
        with_link = not question.is_quick
        facts = await ask_run(question.ticket, own_peer, with_link=with_link)
        for finding in _about_run(facts, is_quick=question.is_quick):
            yield finding
    manifest = facts.manifest if facts else None
    model_bytes = None if manifest is None else manifest.weights.size_bytes
    own_bytes = 0
    if question.ticket is not None:
        weights = question.state_dir / "runs" / question.ticket.run_id / "weights"
        own_bytes = await trio.to_thread.run_sync(bytes_in, weights)
    yield judge_disk(
        machine.free_disk_bytes(question.state_dir) + own_bytes,
        needed_bytes=None if manifest is None else quota_for(manifest),
        quota_bytes=question.disk_bytes,
    )
    reading, why = await trio.to_thread.run_sync(machine.read_gpu, question.options)
    yield machine.examine_gpu(reading, why, model_bytes=model_bytes)
    if reading is None:
        yield judge_memory(machine.available_memory_bytes(), model_bytes=model_bytes)
    if question.is_quick:
        return
    engine = await _engine_facts(question, running)
    yield judge_engine(engine.problem, tokens_per_s=engine.tokens_per_s, with_what=engine.with_what)
    if facts is not None and not facts.problem:
        yield _about_future(facts, engine)


def _about_run(facts: RunFacts, *, is_quick: bool) -> list[Finding]:
    status = facts.status
    found = [
        judge_learner(
            facts.problem,
            phase="" if status is None else status.phase,
            round_trip_s=facts.round_trip_s,
        )
    ]
    if status is None:
        return found
    found += [
        judge_clock(facts.skew_s, uncertainty_s=facts.round_trip_s / 2),
        judge_reach(
            facts.addresses,
            reachability=facts.reachability,
            is_public=facts.is_public,
            router=router_between(facts.own_end, facts.seen_at),
        ),
    ]
    if not is_quick or facts.up_bytes_per_s is not None:
        found.append(judge_link(facts.up_bytes_per_s, facts.down_bytes_per_s, facts.link_problem))
    return found


def _about_future(facts: RunFacts, engine: EngineFacts) -> Finding:
    missing = ""
    if facts.status is None or facts.manifest is None:
        missing = "the learner has not published a version yet"
    elif facts.status.train_s is None:
        missing = "the learner has not made an update yet"
    elif facts.down_bytes_per_s is None:
        missing = "the line was not measured"
    elif not engine.is_real or engine.tokens_per_s is None:
        missing = "the run's model was not tried here yet"
    if missing or facts.status is None or facts.manifest is None:
        return judge_prospect(None, missing=missing)
    prospect = prospect_of(
        facts.status,
        facts.manifest,
        tokens_per_s=engine.tokens_per_s or 0.0,
        download_bytes_per_s=facts.down_bytes_per_s or 0.0,
        load_s=engine.load_s,
    )
    return judge_prospect(prospect, missing="the measured speeds are zero")


async def _engine_facts(question: DoctorRequest, running: NodeSnapshot | None) -> EngineFacts:
    if running is not None and running.engine.tokens_per_s is not None:
        return EngineFacts(
            tokens_per_s=running.engine.tokens_per_s,
            with_what="the node that runs",
            is_real=question.ticket is not None and running.run_id == question.ticket.run_id,
        )
    return await try_engine(
        question.engine_kind,
        question.options,
        state_dir=question.state_dir,
        ticket=question.ticket,
    )


async def _running(state_dir: Path) -> NodeSnapshot | None:
    try:
        async with open_control(state_dir) as client:
            return await client.status()
    except NoNodeError:
        return None
    except SwarmError:
        return None  # it does not answer: then it is no help


def _own_peer(state_dir: Path) -> PeerId | None:
    path = state_dir / "identity.key"
    if not path.exists():
        return None
    try:
        return load_or_create(path).peer
    except StoreError:
        return None


def _show(console: Console, finding: Finding) -> None:
    line = Text.assemble(
        (f"{finding.verdict.value:<5}", _STYLES[finding.verdict]),
        f"{finding.name:<{_NAME_WIDTH}} ",
        printable(finding.text, max_chars=600),
    )
    if finding.remedy:
        line.append(f"  -> {printable(finding.remedy, max_chars=300)}", style="bold")
    console.print(line)
    console.file.flush()
