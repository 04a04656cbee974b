"""The run's configuration: one TOML file, read into frozen structs.

Every key is documented where it is defined; ``echo2-learner init`` writes a
commented file from these docstrings, so they are for run owners to read.
"""

from typing import Annotated, Any, Literal

import msgspec

from echo2swarm.text.toml_tables import Name, Table
from learner.config.presets import Importance, KlEstimator, LengthNorm, Level, Preset

Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class RunConfig(Table, frozen=True):
    """What the run is."""

    name: Name = "run"
    """Part of the run id, which nodes and logs show."""
    num_steps: AtLeastOne = 100
    """Optimizer steps to do."""
    seed: Natural = 0
    """Prompts, sampling seeds and the optimizer follow from it."""
    stall_s: Positive = 300.0
    """When nothing has moved for so long, the log says who waits for what."""


class ModelConfig(Table, frozen=True):
    """What is trained."""

    path: str = "embedded"
    """A folder in Hugging Face format with safetensors, a hub id, or "embedded" (SmolLM2-135M)."""


class SwarmConfig(Table, frozen=True):
    """How the learner appears in the network."""

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/4150",)
    """Multiaddresses to listen on."""
    advertise: tuple[str, ...] = ()
    """Addresses to put into the ticket instead of those found on this machine:
    `/ip4/HOST/tcp/PORT`, `/ip6/...` or `/dns4/NAME/tcp/PORT`."""
    bootstrap: tuple[str, ...] = ()
    """Further peers (multiaddresses with /p2p/) to join the DHT through."""
    hole_punching: bool = True
    """Whether to help nodes behind routers to connect to each other (docs/nat.md)."""
    heartbeat_s: Annotated[float, msgspec.Meta(ge=0.2, le=60)] = 2.0
    """How often nodes report."""
    ticket_valid_h: Positive = 720.0
    """How long the ticket admits new nodes, in hours."""
    upload_mbit: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | None = None
    """Most that the learner uploads of weights, in Mbit/s; left out, all that its line carries."""


class RolloutConfig(Table, frozen=True):
    """How rollouts are made and how stale they may be."""

    prompts_per_step: AtLeastOne = 16
    """Groups that one update consumes."""
    group_size: Annotated[int, msgspec.Meta(ge=2, le=256)] = 8
    """Completions per prompt; advantages are relative to the group."""
    max_staleness: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 2
    """S: a rollout of version v may enter the update that starts from version t iff t - v <= S."""
    publish_every: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """Publish a version every this many steps; at most max_staleness + 1."""
    temperature: Annotated[float, msgspec.Meta(gt=0, le=10)] = 1.0
    """Of sampling; the full distribution is sampled."""
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=131_072)] = 256
    """Length at which a completion is cut off."""
    lease_prompts: AtLeastOne | Literal["auto"] = "auto"
    """Most prompts per lease; "auto" gives each node what it does in about half a step."""
    lease_timeout_s: Positive = 120.0
    """A lease not finished within this time is leased to others, if they were not asked before."""
    headroom: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.15
    """Rollouts in flight and buffered beyond what is needed, as a share of it."""
    equal_groups: Literal["keep", "replace"] = "keep"
    """Groups whose completions are all worth the same teach nothing: train without, or replace."""
    max_replaced: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    """Most groups replaced per update, times prompts_per_step; beyond that they are kept."""


class SelectorConfig(Table, frozen=True):
    """Which nodes are activated: the cheapest that keep the learner busy, within these limits."""

    max_usd_per_hour: Positive | None = None
    """Of all active nodes together."""
    max_node_usd_per_hour: Positive | None = None
    """Of one node; dearer ones stand by."""
    max_nodes: AtLeastOne | None = None
    """Active at once."""
    sigmas: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.8
    """Standard deviations of the supply to have in reserve: for nodes that fail or slow down."""


class TrainerConfig(Table, frozen=True):
    """The update."""

    kind: Literal["grpo", "sleep"] = "grpo"
    """"sleep" waits train_s seconds instead of training: for benchmarks of the swarm."""
    learning_rate: Positive = 1e-6
    """Of AdamW, after warm-up."""
    warmup_steps: Natural = 5
    """Steps over which the learning rate rises linearly."""
    beta1: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    """Of AdamW."""
    beta2: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.99
    """Of AdamW."""
    weight_decay: NonNegative = 0.0
    """Of AdamW."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""
    max_skipped_steps: AtLeastOne = 5
    """Updates in a row that may give a NaN or infinity, and are skipped, before the run stops."""
    objective: Preset = "standard"
    """What decides the five keys that follow where they are left out (docs/objective.md)."""
    clip_low: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """Lower clip of the policy ratio: 1 - clip_low."""
    clip_high: Positive | None = None
    """Upper clip of the policy ratio: 1 + clip_high."""
    ratio_level: Level | None = None
    """The policy ratio is of a token, a sequence, or the geometric mean over a sequence's tokens.
    """
    length_norm: LengthNorm | None = None
    """Losses are averaged over all tokens, per sequence first, or over a constant length."""
    scale_advantages: bool | None = None
    """Divide advantages by the group's standard deviation."""
    importance: Importance = "decoupled"
    """Weigh by the learner's to the sampling policy; or clip against the latter; or neither."""
    importance_level: Level = "token"
    """Of the importance weight; as ratio_level."""
    importance_cap: Positive = 2.0
    """Truncation of the importance weight between the learner's and the sampling policy."""
    mask_below: NonNegative = 0.0
    """What has an importance weight, before truncation, below this does not count; 0 for none."""
    mask_above: Positive | None = None
    """The same above this; left out, for none."""
    mask_level: Level = "token"
    """Of the weight that decides; all tokens of a sequence count, or none, unless "token"."""
    dual_clip: Annotated[float, msgspec.Meta(ge=0)] = 3.0
    """Most that the policy ratio counts where the advantage is negative; 0 for no limit."""
    off_policy_mask: NonNegative = 0.0
    """Bad sequences with a mean log(behaviour/policy) over this do not count; 0 for no mask."""
    max_drift: NonNegative = 0.5
    """Sequences with a mean |log(policy/behaviour)| over this do not count; 0 for no mask."""
    kl_coefficient: NonNegative = 0.0
    """Weight of the KL penalty to the initial model; 0 keeps no reference model."""
    kl_estimator: KlEstimator = "k3"
    """Of the KL penalty: half the squared log ratio; Schulman's; that times the policy ratio."""
    minibatches: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Optimizer steps per update, each with a part of the groups; more than 1 gives clips a use."""
    micro_batch_tokens: AtLeastOne = 4096
    """Most tokens in one forward pass; only a longer completion has more, and goes alone."""
    activation_checkpointing: bool = False
    """Compute layers twice instead of keeping what they computed: less memory, a third slower."""
    num_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    """Processes that share model and batch, each with a GPU of this machine (docs/several-gpus.md).
    """
    device: str = "auto"
    """"auto", "cpu", "cuda" or "cuda:N"; with several processes, "cuda" stands for one GPU each."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward and backward; master weights are always float32."""
    publish_dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    """Of the weights that nodes receive."""
    threads: Natural = 0
    """CPU threads of the trainer; 0 decides by the machine."""
    train_s: Positive = 1.0
    """Only for kind = "sleep"."""


class CheckpointConfig(Table, frozen=True):
    """What survives a crash."""

    every_steps: Natural = 10
    """Save a checkpoint every this many steps, and at the end; 0 only at the end."""
    keep: AtLeastOne = 2
    """Newest checkpoints kept; each is a way back if a newer one is damaged."""
    keep_every_steps: Natural = 0
    """Checkpoints of every this many steps are kept for ever; 0 for none."""
    in_background: bool = True
    """Write beside the next updates, from a copy in memory; false saves the memory, not the time.
    """


class EvalConfig(Table, frozen=True):
    """Evaluation on held-out prompts while the run goes on (docs/evaluate.md)."""

    every_steps: Natural = 0
    """Evaluate a version every this many steps, and the first and the last one; 0 for never."""
    num_prompts: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 64
    """Held-out prompts of each evaluation; fewer if the task has fewer."""
    num_samples: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    """Completions of each prompt: the k of mean@k."""
    temperature: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    """Of sampling; left out, rollouts.temperature."""
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=131_072)] | None = None
    """Length at which a completion is cut off; left out, rollouts.max_new_tokens."""
    max_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.25
    """Most of the active nodes that evaluate at once, while there is training; one in any case."""
    timeout_s: Positive = 900.0
    """An evaluation that takes longer ends with those prompts that are done."""


class TrackingConfig(Table, frozen=True):
    """Tools that are told the metrics, besides metrics.jsonl (docs/metrics.md)."""

    tensorboard: bool = False
    """Write event files for TensorBoard into the folder tensorboard/ of the run directory."""


class LearnerConfig(Table, frozen=True):
    """All of it."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    task: dict[str, Any] = msgspec.field(default_factory=lambda: {"kind": "arithmetic"})
    swarm: SwarmConfig = SwarmConfig()
    rollouts: RolloutConfig = RolloutConfig()
    selector: SelectorConfig = SelectorConfig()
    trainer: TrainerConfig = TrainerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval: EvalConfig = EvalConfig()
    tracking: TrackingConfig = TrackingConfig()
