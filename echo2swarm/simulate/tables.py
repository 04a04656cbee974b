"""What is simulated: a scenario as data.

Every key is documented where it is defined, for whoever writes a scenario.
"""

from math import ceil
from typing import Annotated, Final, Literal

import msgspec

from echo2swarm.text.toml_tables import Name, Table
from protocols.leases import MAX_GROUPS

MBIT_BYTES: Final = 125_000.0
"""Bytes per second in one Mbit/s."""
MAX_NODES: Final = 100_000

Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Spread = Annotated[float, msgspec.Meta(ge=0, le=3)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class SimulatedRunTable(Table, frozen=True):
    """How long, and which luck."""

    num_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 100
    """Updates to simulate."""
    seed: Natural = 0
    """All chance follows from it: the same scenario with the same seed gives the same result."""
    give_up_s: Annotated[float, msgspec.Meta(gt=0, le=1e7)] = 7200.0
    """A learner that waits this long for one batch ends the simulation, with what it lacked."""


class SimulatedLearnerTable(Table, frozen=True):
    """The learner: what one update takes, and how work for it is leased."""

    prompts_per_step: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
    """Groups that one update consumes."""
    group_size: Annotated[int, msgspec.Meta(ge=2, le=256)] = 8
    """Completions per prompt."""
    max_staleness: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 4
    """S: a rollout of version v may enter the update that starts from version t iff t - v <= S."""
    publish_every: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """Publish a version every this many steps; at most max_staleness + 1."""
    headroom: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.15
    """Rollouts in flight, buffered and supplied beyond what is needed, as a share of it."""
    lease_prompts: Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS)] | None = None
    """Most prompts per lease; left out, what a node does in about half a step."""
    lease_timeout_s: Positive = 1800.0
    """A lease not finished within this time is leased to others."""
    train_s: Positive = 60.0
    """Seconds of one update, once it has its rollouts."""
    train_cv: Spread = 0.0
    """Spread of train_s: standard deviation over mean, log-normal."""
    write_s: NonNegative = 0.0
    """Seconds in which the trainer writes weights to be published, and does not train."""
    publish_s: NonNegative = 0.5
    """Seconds of hashing and signing a version, beside the next update."""
    judge_s: NonNegative = 0.02
    """Seconds from receiving a submission to its verdict: scoring and recording."""
    restart_s: NonNegative = 30.0
    """Seconds that a learner which was away takes to load its checkpoint."""
    checkpoint_every: AtLeastOne = 10
    """Steps between checkpoints: after a crash, what was trained since is trained again."""
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0.2, le=60)] = 2.0
    """How often nodes report; one that died is missed after three of these and four seconds."""
    upload_mbit: Positive = 200.0
    """What the learner uploads of weights, in Mbit/s."""
    usd_per_hour: NonNegative = 0.0
    """Price of the learner's machine."""
    equal_groups: Literal["keep", "replace"] = "keep"
    """Whether groups whose completions are all worth the same are replaced (answers.equal_share).
    """
    max_replaced: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """Most groups replaced per update, times prompts_per_step; beyond that they are kept."""


class AnswersTable(Table, frozen=True):
    """How long completions are."""

    mean_tokens: Positive = 1000.0
    """Mean length."""
    cv: Spread = 0.0
    """Spread of lengths: standard deviation over mean, log-normal."""
    prompt_share: Share = 0.5
    """Share of that spread (of the variance) that all answers to one prompt have in common."""
    max_tokens: Positive = 131_072.0
    """Length at which an answer is cut off."""
    prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=131_072)] = 64
    """Length of every prompt."""
    equal_share: Share = 0.0
    """Share of the prompts whose answers are all worth the same."""


class BroadcastTable(Table, frozen=True):
    """How a version reaches the nodes."""

    payload_mb: NonNegative = 100.0
    """Size of what a node fetches for the next version, in MB (10**6 bytes)."""
    whole_mb: Positive | None = None
    """What a node fetches that joins, or has slept through versions; payload_mb if left out."""
    overhead: Annotated[float, msgspec.Meta(ge=1, le=10)] = 1.15
    """When the last node has it, in multiples of the least possible time of all links."""
    spread: Share = 0.15
    """How far before the last the first node has it, as a share of that time."""
    fixed_s: NonNegative | None = None
    """If set, links and sizes do not matter: the last node has a version after so many seconds."""
    to_standby: bool = True
    """Whether nodes on standby fetch versions too, as live nodes do."""


class SimulatedSelectorTable(Table, frozen=True):
    """Which nodes are activated."""

    every_s: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 5.0
    """Seconds from one selection to the next."""
    max_usd_per_hour: Positive | None = None
    """Of all active nodes together."""
    max_node_usd_per_hour: Positive | None = None
    """Of one node; dearer ones stand by."""
    max_nodes: AtLeastOne | None = None
    """Active at once."""
    sigmas: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.8
    """Standard deviations of the supply to have in reserve."""
    effort: Literal["greedy", "exact"] = "greedy"
    """How hard the selector looks for the cheapest set; "exact" is slow for thousands."""


class NodesTable(Table, frozen=True):
    """Nodes of one kind."""

    name: Name
    """What results call them."""
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_NODES)] = 1
    """How many there are at the start."""
    rollouts_per_s: Positive | None = None
    """Completions of mean length per second, when at work. Either this or tokens_per_s."""
    tokens_per_s: Positive | None = None
    """Sampled tokens per second, of all completions at once. Either this or rollouts_per_s."""
    speed_cv: Spread = 0.0
    """Spread of that speed among them: standard deviation over mean, log-normal."""
    batching: Literal["total", "longest"] = "total"
    """"total": a batch takes as long as all its tokens; "longest": as its longest answer does
    with concurrency answers side by side."""
    batch_cv: Spread = 0.0
    """Spread of how long equal batches take, beside that of lengths: a machine is never even."""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 128
    """Completions sampled at once."""
    load_s: NonNegative = 1.0
    """Seconds to apply a version once it is there; nothing is sampled meanwhile."""
    rtt_s: NonNegative = 0.05
    """Round trip of a message to the learner."""
    up_mbit: NonNegative = 100.0
    """Upload of weights to other nodes, in Mbit/s."""
    down_mbit: Positive = 500.0
    """Download, in Mbit/s."""
    usd_per_hour: NonNegative = 0.0
    """Price; contributed machines have none."""
    price_cv: Spread = 0.0
    """Spread of prices, among them and with every change: standard deviation over mean."""
    price_every_s: Positive | None = None
    """Prices change this often; left out, never."""
    startup_s: NonNegative = 10.0
    """Seconds from joining until its engine is up."""
    join_over_s: NonNegative = 0.0
    """They join one after the other, over so many seconds."""
    mean_stay_s: Positive | None = None
    """Mean of the exponential time until one vanishes, mid-lease; left out, they stay."""
    mean_away_s: Positive | None = None
    """Mean of the exponential time until it comes back; left out, it is gone for good."""
    claimed_rollouts_per_s: Positive | None = None
    """What each says of its speed when it joins; the truth if left out."""
    refused_share: Share = 0.0
    """Share of its completions that the learner's checks refuse."""


EventKind = Literal["price", "leave", "join", "outage", "speed", "learner_outage"]


class EventTable(Table, frozen=True):
    """Something that happens at a set time."""

    at_s: NonNegative
    """When, in seconds from the start."""
    kind: EventKind
    """"price": usd_per_hour changes; "leave": they drain and go; "join": count more come;
    "outage": they vanish for for_s; "speed": they go factor times as fast as at first;
    "learner_outage": the learner is killed and starts again after for_s."""
    nodes: str | None = None
    """Which kind of nodes, by name; all if left out."""
    share: Share = 1.0
    """Share of them that it happens to, drawn by chance."""
    usd_per_hour: NonNegative | None = None
    """For "price"."""
    count: AtLeastOne | None = None
    """For "join"."""
    for_s: Positive | None = None
    """For "outage" and "learner_outage"."""
    factor: Positive | None = None
    """For "speed"."""


class Scenario(Table, frozen=True):
    """All of it."""

    name: str = "scenario"
    run: SimulatedRunTable = SimulatedRunTable()
    learner: SimulatedLearnerTable = SimulatedLearnerTable()
    answers: AnswersTable = AnswersTable()
    broadcast: BroadcastTable = BroadcastTable()
    selector: SimulatedSelectorTable = SimulatedSelectorTable()
    nodes: tuple[NodesTable, ...] = ()
    events: tuple[EventTable, ...] = ()

    @property
    def rollouts_per_step(self) -> int:
        """R."""
        return self.learner.prompts_per_step * self.learner.group_size

    @property
    def max_replaced(self) -> int:
        """Groups replaced per update, at most."""
        learner = self.learner
        return learner.max_replaced * learner.prompts_per_step * (learner.equal_groups == "replace")

    @property
    def rollouts_made_per_step(self) -> int:
        """What must be made for R to be used, if groups without signal are replaced."""
        most = self.rollouts_per_step + self.max_replaced * self.learner.group_size
        used_share = 1 - self.answers.equal_share
        if not self.max_replaced or used_share * most <= self.rollouts_per_step:
            return most
        return ceil(self.rollouts_per_step / used_share - 1e-9)

    def rollouts_per_s(self, kind: NodesTable) -> float:
        """Return what one node of a kind makes per second, of answers of mean length."""
        if kind.rollouts_per_s is not None:
            return kind.rollouts_per_s
        return (kind.tokens_per_s or 0.0) / self.answers.mean_tokens

    def with_seed(self, seed: int) -> "Scenario":
        """Return the same scenario with other luck."""
        return msgspec.structs.replace(self, run=msgspec.structs.replace(self.run, seed=seed))
