"""Does pacing save work, and does everybody get a share of it?

``python -m benchmarks.pacing [--quick] [--json FILE]``

Half of it is the dispatch core on virtual time, where it can be told not to pace: the same
pool, half as large again as needed, once with and once without. The other half is live:
real processes and real libp2p, engines and a trainer that wait instead of computing, three
nodes that make half as much again as needed, and one that is ten times slower than they are.
"""

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio
from rich.console import Console

from benchmarks.harness import Mark, Outcome, finish, ratio
from benchmarks.pacing_swarm import PacingSwarm, SimNode, pacing_rules
from echo2swarm.report.fairness import KindShare
from echo2swarm.report.run_reader import read_run
from echo2swarm.report.run_record import RunRecord, busy_share
from echo2swarm.system.errors import SwarmError
from echo2swarm.text.cli_errors import run_cli
from learner.config import (
    CheckpointConfig,
    LearnerConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SelectorConfig,
    SwarmConfig,
    TrainerConfig,
)
from learner.demo.settings import LISTEN, TINY_MODEL_DIR
from learner.demo.signals import until_signal
from learner.demo.swarm import open_swarm

NUM_FAST: Final = 3
PROMPTS_PER_STEP: Final = 6
GROUP_SIZE: Final = 4
ROLLOUTS_PER_STEP: Final = PROMPTS_PER_STEP * GROUP_SIZE
STALENESS: Final = 2
SUPPLY: Final = 1.5
"""Of the fast nodes together, over what the learner needs."""
SLOWER: Final = 10.0
SLOW: Final = "slow"
SIM_STEPS: Final = 200
MAX_EXPIRED: Final = 0.02
UNPACED: Final = (0.25, 0.40)
"""About a third is what is too much."""
MIN_SHARE: Final = 0.5
"""Of what a node could make, it is to have made so much that was trained on."""
TOLD: Final = "too slow to be of use"
_TIMEOUT_S: Final = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How long the live run is."""

    num_steps: int
    train_s: float

    @property
    def fast_per_s(self) -> float:
        """Rollouts per second of one fast node."""
        return SUPPLY * ROLLOUTS_PER_STEP / self.train_s / NUM_FAST


FULL: Final = Load(num_steps=60, train_s=1.0)
QUICK: Final = Load(num_steps=28, train_s=0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    name: str
    busy_share: float
    num_issued: int
    num_trained: int
    expired_share: float
    """Of what was issued: stale when it came, when its turn came, or given up as too old."""
    doubled_share: float
    """Of what was issued: asked of a second node as the first was late, and not needed."""
    slow_share: float
    """What the slow node made of what was trained on, over its part of the supply."""
    slow_was_told: bool


def simulate(*, is_paced: bool, has_slow: bool) -> Measured:
    """Run the dispatch core on virtual time."""
    load = FULL
    nodes = [
        SimNode(name=f"fast-{i}", rollout_s=1 / load.fast_per_s, broadcast_s=0.1)
        for i in range(NUM_FAST)
    ]
    slow = SimNode(name=SLOW, rollout_s=SLOWER / load.fast_per_s, broadcast_s=0.1)
    rules = pacing_rules(
        groups_per_step=PROMPTS_PER_STEP,
        group_size=GROUP_SIZE,
        max_staleness=STALENESS,
        is_paced=is_paced,
    )
    run = PacingSwarm(rules, [*nodes, slow] if has_slow else nodes, train_s=load.train_s)
    run.run(SIM_STEPS)
    return Measured(
        name=f"virtual time, {'paced' if is_paced else 'not paced'}"
        + (", and a slow node" if has_slow else ""),
        busy_share=run.utilisation,
        num_issued=run.num_leased,
        num_trained=run.outcomes["trained"],
        expired_share=run.wasted_share,
        doubled_share=run.outcomes["answered"] / run.num_leased,
        slow_share=_over_part(slow.num_trained, run.outcomes["trained"]),
        slow_was_told=slow.last_no is not None and TOLD in slow.last_no.why,
    )


def config_for(load: Load) -> LearnerConfig:
    """Return the live run's configuration."""
    return LearnerConfig(
        run=RunConfig(name="pacing", num_steps=load.num_steps, seed=1),
        model=ModelConfig(path=str(TINY_MODEL_DIR)),
        task={"kind": "sort_digits"},
        swarm=SwarmConfig(listen=(LISTEN,), heartbeat_s=0.5),
        rollouts=RolloutConfig(
            prompts_per_step=PROMPTS_PER_STEP,
            group_size=GROUP_SIZE,
            max_staleness=STALENESS,
            max_new_tokens=4,
        ),
        # All of them are to work: it is about more than is needed.
        selector=SelectorConfig(sigmas=10.0),
        trainer=TrainerConfig(kind="sleep", train_s=load.train_s, threads=1),
        checkpoint=CheckpointConfig(every_steps=0),
    )


async def run_live(folder: Path, load: Load) -> Measured:
    """Run a swarm to its end and return what its own record says."""
    async with open_swarm(folder) as swarm:
        ticket = await swarm.start_learner(config_for(load))
        speeds = {f"fast-{i + 1}": load.fast_per_s for i in range(NUM_FAST)}
        for name, per_s in {**speeds, SLOW: load.fast_per_s / SLOWER}.items():
            option = ("--engine-option", f"rollouts_per_s={per_s:g}")
            arguments = ("--listen", LISTEN, *option)
            await swarm.start_node(name, ticket, engine="sleep", arguments=arguments)
        await swarm.wait_finished(timeout_s=_TIMEOUT_S)
        record = read_run(swarm.run_dir)
        num_expired, num_doubled = read_waste(swarm.run_dir / "ledger.sqlite")
    share = busy_share(record.steps)
    if share is None or len(record.steps) < load.num_steps:
        raise SwarmError(f"only {len(record.steps)} of {load.num_steps} steps were recorded")
    kinds = by_node(record)
    num_issued = sum(kind.num_issued for kind in kinds.values())
    num_trained = sum(kind.num_trained for kind in kinds.values())
    slow = kinds.get(SLOW, KindShare(name=SLOW))
    return Measured(
        name="live, paced, and a slow node",
        busy_share=share,
        num_issued=num_issued,
        num_trained=num_trained,
        expired_share=num_expired / num_issued,
        doubled_share=num_doubled / num_issued,
        slow_share=_over_part(slow.num_trained, num_trained),
        slow_was_told=any(TOLD in node.why for node in record.nodes if node.name == SLOW),
    )


def by_node(record: RunRecord) -> dict[str, KindShare]:
    """Return what was issued to, accepted from and trained on of each node."""
    return {
        kind.name: kind for shares in record.shares if shares.by == "node" for kind in shares.kinds
    }


def read_waste(ledger: Path) -> tuple[int, int]:
    """Return how many rollouts expired, and how many were made twice."""
    with closing(sqlite3.connect(ledger)) as db:
        (refused,) = db.execute(
            "SELECT COALESCE(SUM(num_refused), 0) FROM refusals WHERE reason = 'stale'"
        ).fetchone()
        (dropped,) = db.execute(
            "SELECT COUNT(*) FROM rollouts JOIN groups USING (group_id) WHERE drop_reason = 'stale'"
        ).fetchone()
        (given_up,) = db.execute(
            "SELECT COALESCE(SUM(num_unfinished), 0) FROM leases WHERE outcome = 'too_old'"
        ).fetchone()
        (doubled,) = db.execute(
            "SELECT COALESCE(SUM(num_refused), 0) FROM refusals WHERE reason = 'already_answered'"
        ).fetchone()
    return refused + dropped + given_up, doubled


def _over_part(num_trained: int, num_all: int) -> float:
    part_of_supply = 1 / SLOWER / (NUM_FAST + 1 / SLOWER)
    return ratio(num_trained, num_all * part_of_supply)


def judge(runs: list[Measured]) -> Outcome:
    """Hold the runs against the marks."""
    without, paced, *with_slow = runs
    return Outcome(
        name="pacing",
        what=(
            f"{NUM_FAST} nodes make {SUPPLY:g} times what is needed, and with them one that is "
            f"{SLOWER:g} times slower than each; S = {STALENESS}."
        ),
        columns=("run", "busy", "issued", "trained", "expired %", "made twice %", "slow's share"),
        rows=tuple(
            (
                run.name,
                run.busy_share,
                str(run.num_issued),
                str(run.num_trained),
                100 * run.expired_share,
                100 * run.doubled_share,
                run.slow_share if "slow" in run.name else "-",
            )
            for run in runs
        ),
        marks=(
            Mark(
                name="expired without pacing",
                value=without.expired_share,
                at_least=UNPACED[0],
                at_most=UNPACED[1],
            ),
            *(
                Mark(name=f"expired, {run.name}", value=run.expired_share, at_most=MAX_EXPIRED)
                for run in (paced, *with_slow)
            ),
            *(
                Mark(
                    name=f"trained of what the slow node can make, or told why not, {run.name}",
                    value=max(run.slow_share, float(run.slow_was_told)),
                    at_least=MIN_SHARE,
                )
                for run in with_slow
            ),
        ),
        figures={"runs": runs},
    )


@click.command()
@click.option("--quick", is_flag=True, help="A shorter live run: under a minute in all.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, quick: bool, json_path: Path | None) -> int:
    """Measure what expires with and without pacing, and what a slow node contributes."""
    console = Console()
    runs = [
        simulate(is_paced=False, has_slow=False),
        simulate(is_paced=True, has_slow=False),
        simulate(is_paced=True, has_slow=True),
    ]

    async def work() -> Measured:
        with tempfile.TemporaryDirectory(prefix="echo2-pacing-") as folder:
            return await run_live(Path(folder) / "run", QUICK if quick else FULL)

    live = trio.run(partial(until_signal, work, on_signal=lambda: console.print("ending")))
    return finish(judge([*runs, live]), json_path=json_path, console=console)


if __name__ == "__main__":
    run_cli(main, program="pacing")
