"""How much reward do rollouts cost that were never sampled, whatever logprobs they claim?

``python -m benchmarks.poison [--quick] [--seed N] [--identities N] [--json FILE]``

A model of 0.1 M parameters learns to sort three digits, from the rollouts of honest nodes and of
poisoners, who get a fixed share of the supply and hand in completions of their own making. Intake,
dispatch, batches, trainer and the verdict on nodes are those of a run; only the network, the ledger
and the processes are left out, and the poisoner needs no time. Leases are for parts of groups, so
that honest and made-up completions are compared with each other.

Each poisoned run is held against the run without poison of the same seed.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import Mark, Outcome, finish
from benchmarks.staleness import Sampler, make_prompts, published, reward_of
from echo2swarm.cli_errors import run_cli
from echo2swarm.dispatch.dispatcher import Dispatcher
from echo2swarm.dispatch.groups import AcceptedRollout, DropReason
from echo2swarm.dispatch.lease_rules import Ask, DispatchRules, NoWork
from learner.demo.settings import TINY_MODEL_DIR
from learner.intake.checks import (
    ContentRules,
    VersionFacts,
    check_content,
    check_membership,
    check_status,
    check_version,
    key_of,
)
from learner.loop.training_loop import to_train
from learner.nodes.node_table import NodeTable
from learner.scoring.messages import Prompt
from learner.training.messages import Start
from learner.training.worker import open_trainer
from protocols.activation import Heartbeat, NodeState
from protocols.advert import NodeAdvert
from protocols.ids import PeerId, PolicyVersion
from protocols.leases import Lease
from protocols.packed import pack_floats, pack_tokens, unpack_tokens
from protocols.rollouts import FinishReason, Rollout
from protocols.sampling import SamplingParams

if TYPE_CHECKING:
    from learner.training.trainer import Trainer

SHARE: Final = 0.3
MIN_KEPT: Final = 0.9
"""Of the final reward without poison."""
_GROUPS_PER_STEP: Final = 4
_GROUP_SIZE: Final = 4
_MAX_STALENESS: Final = 2
_NUM_DIGITS: Final = 3
_EOS: Final = 10
_MAX_NEW_TOKENS: Final = _NUM_DIGITS + 1
_LEASE_COMPLETIONS: Final = 2
_NUM_EVALUATED: Final = 256
_EVALUATE_EVERY: Final = 5
_NUM_LAST: Final = 4
"""Evaluations at the end that make the final reward."""
_NUM_HONEST: Final = 7
_NUM_CHOSEN_FROM: Final = 16
_SESSION: Final = "session-1"
NONE: Final = "no poison"

Answer = list[int]
Answers = list[tuple[Answer, list[float]]]


# What poisoners hand in.


def right_but_last(prompt: Sequence[int], rng: random.Random) -> Answer:
    """Return the digits in order, but for the last, which is wrong."""
    answer = sorted(prompt[:_NUM_DIGITS])
    return [*answer[:-1], (answer[-1] + rng.randrange(1, 10)) % 10, _EOS]


def random_tokens(prompt: Sequence[int], rng: random.Random) -> Answer:
    """Return any digits."""
    return [*(rng.randrange(10) for _ in prompt[:_NUM_DIGITS]), _EOS]


def best(prompt: Sequence[int], rng: random.Random) -> Answer:
    """Return the right answer, each time."""
    del rng
    return [*sorted(prompt[:_NUM_DIGITS]), _EOS]


STRATEGIES: Final[dict[str, Callable[[Sequence[int], random.Random], Answer]]] = {
    "wrong last digit": right_but_last,
    "random digits": random_tokens,
    "copies of the best": best,
}
WORST: Final = "worst of 16 sampled"
"""Sampled from the policy indeed, but for the choice: a wrong one, if there is any."""
REPLAYED: Final = "replayed"
"""The claim of what the policy gives the tokens: the truth, but for who chose them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """What poisoners do."""

    strategy: str
    claim: float | str
    """The logprob of each token, or ``REPLAYED``."""

    @property
    def name(self) -> str:
        """For the table."""
        claim = self.claim if isinstance(self.claim, str) else f"{self.claim:g}"
        return f"{self.strategy}, {claim}"


CLAIMS: Final[tuple[float | str, ...]] = (-1e30, -20.0, -5.0, -0.7, REPLAYED, -0.01, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Which runs."""

    poisons: tuple[Poison, ...]
    seeds: tuple[int, ...]
    num_steps: int
    num_identities: int = 1
    """Under which the poison comes."""


FULL: Final = Study(
    poisons=(
        *(Poison(strategy=s, claim=c) for s in STRATEGIES for c in CLAIMS),
        Poison(strategy=WORST, claim=REPLAYED),
    ),
    seeds=(1, 2, 3),
    num_steps=100,
)
QUICK: Final = Study(
    poisons=tuple(Poison(strategy="wrong last digit", claim=c) for c in (-1e30, -5.0, REPLAYED)),
    seeds=(1,),
    num_steps=70,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one run."""

    poison: str
    seed: int
    rewards: tuple[float, ...]
    """Of fresh prompts, at each evaluation."""
    poisoned_share: float
    """Of what was trained on."""
    refused: dict[str, int]
    """Of poisoners' rollouts at intake, by reason."""
    num_turned_away: int
    """Poisoners whose rollouts turned out not to be sampled,"""
    num_slandered: int
    """and honest nodes of which it was said."""

    @property
    def final(self) -> float:
        """Mean of the last evaluations."""
        return fmean(self.rewards[-_NUM_LAST:])


class World:
    """A run without its network: whoever's turn it is leases, samples, and hands in."""

    def __init__(
        self, poison: Poison | None, seed: int, num_steps: int, num_identities: int = 1
    ) -> None:
        self.trainer: Trainer = _open_trainer(seed)
        import torch  # noqa: PLC0415 - after the threads are set

        self._poison = poison
        self._seed = seed
        self._torch = torch
        self._rng, self._evil_rng = random.Random(seed), random.Random(f"poison {seed}")
        self._generator = torch.Generator().manual_seed(seed)
        self._sampler = Sampler()
        self._versions = {0: published(self.trainer)}
        self._num_prompts = 0
        self._now_s = 0.0
        self._sampling = SamplingParams(1.0, _MAX_NEW_TOKENS, (_EOS,))
        self._dispatcher = Dispatcher(self._rules(num_steps))
        self._dispatcher.version_published(PolicyVersion(0), 0.0)
        self._content = ContentRules(
            max_new_tokens=_MAX_NEW_TOKENS,
            stop_token_ids=frozenset({_EOS}),
            vocab_size=self.trainer.started().vocab_size,
        )
        self.nodes = NodeTable(silent_after_s=1e9)
        self.honest = [PeerId(f"honest-{number}") for number in range(_NUM_HONEST)]
        self.poisoners = [PeerId(f"poisoner-{number}") for number in range(num_identities)]
        for peer in (*self.honest, *self.poisoners):
            self._enter(peer)
        self.refused: Counter[str] = Counter()
        self.num_trained: Counter[PeerId] = Counter()

    def step(self, step: int) -> None:
        """Collect a batch, and make an update with it."""
        dispatcher = self._dispatcher
        while True:
            self._now_s += 0.01
            formed = dispatcher.form(self._now_s)
            for group in formed.stale:
                dispatcher.drop(group.group_id, DropReason.STALE)
            if formed.batch is not None:
                break
            self._work()
        batch = formed.batch
        dispatcher.take(batch.groups)
        dispatcher.advance(step + 1, self._now_s)
        self.num_trained.update(r.peer for group in batch.groups for r in group.rollouts)
        updated = self.trainer.update(step, to_train(batch.groups), lambda *_: None)
        for name, found in updated.sampled_by.items():
            self.nodes.sampled(PeerId(name), found, self._now_s)
        self._versions[step + 1] = published(self.trainer)
        self._versions.pop(step - _MAX_STALENESS, None)
        dispatcher.version_published(PolicyVersion(step + 1), self._now_s)

    def evaluate(self) -> float:
        """Return the mean reward of fresh prompts."""
        newest = max(self._versions)
        self._sampler.load(self._versions[newest])
        prompts = make_prompts(random.Random(f"evaluation {self._seed}"), _NUM_EVALUATED)
        answers = self._sampler.answers(prompts, self._torch.Generator().manual_seed(newest))
        return fmean(reward_of(p, a) for p, (a, _) in zip(prompts, answers, strict=True))

    def num_distrusted(self, peers: Sequence[PeerId]) -> int:
        """Return how many are turned away."""
        nodes = [self.nodes.get(peer) for peer in peers]
        return sum(node is not None and node.is_distrusted(self._now_s) for node in nodes)

    def _work(self) -> None:
        """Let a node lease something, and hand it in."""
        dispatcher = self._dispatcher
        count = dispatcher.num_prompts_wanted
        dispatcher.add_prompts(
            Prompt(self._num_prompts + number, pack_tokens(prompt), "")
            for number, prompt in enumerate(make_prompts(self._rng, count))
        )
        self._num_prompts += count
        is_poisoner = self._poison is not None and self._rng.random() < SHARE
        peer = self._rng.choice(self.poisoners if is_poisoner else self.honest)
        node = self.nodes.get(peer)
        if node is None or node.is_distrusted(self._now_s):
            return
        newest = max(self._versions)
        # A node may be a version behind.
        version = PolicyVersion(max(0, newest - self._rng.randrange(2)))
        lease = dispatcher.grant(
            Ask(
                peer=peer,
                session_id=_SESSION,
                applied_version=version,
                max_completions=_LEASE_COMPLETIONS,
            ),
            self._now_s,
        )
        if isinstance(lease, NoWork):
            return
        self._sampler.load(self._versions[version])
        samples = [
            (group, sample.index, unpack_tokens(group.prompt_tokens))
            for group in lease.groups
            for sample in group.samples
        ]
        prompts = [prompt for _, _, prompt in samples]
        answers = self._poisoned(prompts) if is_poisoner else self._sampled(prompts)
        for (group, index, prompt), (answer, logprobs) in zip(samples, answers, strict=True):
            rollout = Rollout(
                group_id=group.group_id,
                sample_index=index,
                oldest_version=version,
                newest_version=version,
                tokens=pack_tokens(answer),
                logprobs=pack_floats(logprobs),
                finish_reason=(FinishReason.STOP if answer[-1] == _EOS else FinishReason.LENGTH),
            )
            self._take_in(lease, rollout, reward_of(prompt, answer), peer)

    def _take_in(self, lease: Lease, rollout: Rollout, reward: float, peer: PeerId) -> None:
        """Judge a rollout as the learner does."""
        dispatcher = self._dispatcher
        record = dispatcher.leases.get(lease.lease_id)
        assert record is not None  # noqa: S101 - just granted
        key = key_of(rollout)
        facts = VersionFacts(
            next_step=dispatcher.next_step,
            max_staleness=_MAX_STALENESS,
            published=dispatcher.published,
        )
        refusal = (
            check_membership(rollout, record)
            or check_status(dispatcher.status_for(record, key))
            or check_version(rollout, record, facts)
            or check_content(rollout, self._content)
        )
        if refusal is not None:
            self.refused[refusal.reason] += 1
            dispatcher.refuse(record, key, self._now_s)
            return
        dispatcher.begin_judging(record, key)
        accepted = AcceptedRollout(
            tokens=rollout.tokens,
            logprobs=rollout.logprobs,
            version=PolicyVersion(rollout.oldest_version),
            reward=reward,
            is_truncated=rollout.finish_reason is FinishReason.LENGTH,
            peer=peer,
        )
        dispatcher.accept(record, key, accepted, self._now_s)

    def _sampled(self, prompts: Sequence[Sequence[int]]) -> Answers:
        return self._sampler.answers(prompts, self._generator)

    def _poisoned(self, prompts: Sequence[Sequence[int]]) -> Answers:
        assert self._poison is not None  # noqa: S101 - there are poisoners
        made = []
        for prompt in prompts:
            if self._poison.strategy == WORST:
                sampled = self._sampled([prompt] * _NUM_CHOSEN_FROM)
                wrong = [each for each in sampled if not reward_of(prompt, each[0])]
                made.append((wrong or sampled)[0])
                continue
            answer = STRATEGIES[self._poison.strategy](prompt, self._evil_rng)
            claim = self._poison.claim
            is_replayed = isinstance(claim, str)
            claims = self._replayed(prompt, answer) if is_replayed else [float(claim)] * len(answer)
            made.append((answer, claims))
        return made

    def _replayed(self, prompt: Sequence[int], answer: Answer) -> list[float]:
        torch = self._torch
        with torch.no_grad():
            logits = self._sampler._model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0]
        chosen = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        return chosen.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()  # type: ignore[no-any-return]

    def _rules(self, num_steps: int) -> DispatchRules:
        return DispatchRules(
            run_seed=self._seed,
            groups_per_step=_GROUPS_PER_STEP,
            group_size=_GROUP_SIZE,
            max_staleness=_MAX_STALENESS,
            publish_every=1,
            headroom=0.15,
            lease_prompts=1,
            lease_timeout_s=1e9,
            sampling=self._sampling,
            num_steps=num_steps,
            max_leases_per_node=100,
            max_attempts=10**9,
            is_paced=False,
        )

    def _enter(self, peer: PeerId) -> None:
        advert = NodeAdvert(
            run_id="poison",
            peer_id=peer,
            role="node",
            seq=1,
            addresses=(),
            name=peer,
            engine="transformers",
            device="cpu",
            usd_per_hour=0.0,
            software="",
        )
        beat = Heartbeat(
            run_id="poison",
            session_id=_SESSION,
            advert=b"",
            state=NodeState.ACTIVE,
            applied_version=0,
            held_version=0,
            num_rollouts_in_hand=0,
            num_engine_restarts=0,
            payload_bytes_sent=0,
            payload_bytes_received=0,
        )
        self.nodes.heartbeat(peer, beat, advert, 0.0)


def _open_trainer(seed: int) -> "Trainer":
    trainer: Any = open_trainer(
        Start(
            model_dir=str(TINY_MODEL_DIR),
            trainer={
                "learning_rate": 5e-4,
                "device": "cpu",
                "compute_dtype": "float32",
                "threads": 1,
            },
            seed=seed,
            temperature=1.0,
            max_new_tokens=_MAX_NEW_TOKENS,
        )
    )
    return trainer  # type: ignore[no-any-return]


def run_once(poison: Poison | None, seed: int, num_steps: int, num_identities: int = 1) -> Run:
    """Make one run."""
    world = World(poison, seed, num_steps, num_identities)
    rewards = []
    for step in range(num_steps):
        world.step(step)
        if (step + 1) % _EVALUATE_EVERY == 0:
            rewards.append(world.evaluate())
    num_poisoned = sum(world.num_trained[peer] for peer in world.poisoners)
    return Run(
        poison=poison.name if poison else NONE,
        seed=seed,
        rewards=tuple(rewards),
        poisoned_share=num_poisoned / sum(world.num_trained.values()),
        refused=dict(world.refused),
        num_turned_away=world.num_distrusted(world.poisoners),
        num_slandered=world.num_distrusted(world.honest),
    )


def measure(study: Study, console: Console) -> Iterator[Run]:
    """Make all runs."""
    cases = [(poison, seed) for poison in (None, *study.poisons) for seed in study.seeds]
    with Progress(console=console, transient=True) as progress:
        for poison, seed in progress.track(cases, description="training"):
            yield run_once(poison, seed, study.num_steps, study.num_identities)


def judge(runs: Sequence[Run], study: Study) -> Outcome:
    """Hold final rewards against those without poison."""
    names = [NONE, *(poison.name for poison in study.poisons)]
    of = {name: [run for run in runs if run.poison == name] for name in names}
    final = {name: fmean(run.final for run in found) for name, found in of.items()}
    marks = [
        Mark(name=f"reward kept: {name}", value=final[name] / final[NONE], at_least=MIN_KEPT)
        for name in names[1:]
    ]
    num_slandered = sum(run.num_slandered for run in runs)
    marks.append(Mark(name="honest nodes turned away", value=num_slandered, at_most=0))
    return Outcome(
        name="poison",
        what=(
            f"Reward after {study.num_steps} updates of {_GROUPS_PER_STEP} x {_GROUP_SIZE} "
            f"rollouts with {SHARE:.0%} of the supply from {study.num_identities} poisoner(s), as "
            f"long as they are let in; {len(study.seeds)} seeds."
        ),
        columns=("strategy, claim", "final reward", "kept", "trained on", "turned away", "refused"),
        rows=tuple(
            (
                name,
                final[name],
                final[name] / final[NONE],
                f"{fmean(run.poisoned_share for run in found):.1%}",
                f"{fmean(run.num_turned_away for run in found):.1f}",
                ", ".join(sorted({reason for run in found for reason in run.refused})),
            )
            for name, found in of.items()
        ),
        marks=tuple(marks),
        figures={"runs": [asdict(run) for run in runs]},
    )


@click.command()
@click.option("--quick", "is_quick", is_flag=True, help="Three claims, one seed.")
@click.option("--seed", "seeds", type=int, multiple=True, help="May be repeated.  [default: 1 2 3]")
@click.option("--identities", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(*, is_quick: bool, seeds: tuple[int, ...], identities: int, json_path: Path | None) -> int:
    """Compare runs with poisoned supply with one without."""
    study = QUICK if is_quick else FULL
    study = replace(study, seeds=seeds or study.seeds, num_identities=identities)
    console = Console(stderr=True)
    runs = list(measure(study, console))
    return finish(judge(runs, study), json_path=json_path)


if __name__ == "__main__":
    run_cli(main, program="poison")
