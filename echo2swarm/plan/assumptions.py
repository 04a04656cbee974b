"""What a plan goes by: one TOML file, read into frozen structs.

Every key is documented where it is defined; ``swarm plan --example`` writes a commented file
from these docstrings, so they are for run owners to read.
"""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from echo2swarm.scheduling.selection.offers import MAX_OFFERS
from echo2swarm.system.errors import ConfigError
from echo2swarm.text.toml_docs import comment, default_of, field_docs, summary, toml_of
from echo2swarm.text.toml_tables import Table, convert_table

Price = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e7)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Mbit = Annotated[float, msgspec.Meta(gt=0, le=1e7)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_OFFERS)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
Staleness = Annotated[int, msgspec.Meta(ge=0, le=64)]

MAX_KINDS: Final = 10_000
_MAX_FILE_BYTES: Final = 4 * 1024 * 1024


class PlanLearnerTable(Table, frozen=True):
    """The machine that trains, and what it does in a step."""

    prompts_per_step: Count = 128
    """Groups that one update consumes."""
    group_size: Count = 16
    """Completions per prompt; R is prompts_per_step times this."""
    tokens_per_rollout: Rate = 2000.0
    """Mean length of a completion; only the price per million tokens depends on it."""
    train_s: Annotated[float, msgspec.Meta(ge=1e-3, le=1e7)] = 300.0
    """T: seconds for one update when rollouts are there."""
    overhead_s: Seconds = 0.0
    """Seconds per step in which it neither trains nor waits: writing weights, checkpoints."""
    usd_per_hour: Price = 0.0
    """What the machine costs."""
    upload_mbit: Mbit | None = None
    """What it can upload, in Mbit/s; left out, broadcast_s of [weights] is taken."""


class WeightsTable(Table, frozen=True):
    """What travels for each version."""

    payload_mb: Annotated[float, msgspec.Meta(ge=0, le=1e7)] = 0.0
    """Megabytes that a node fetches: all of it, or the delta. 0 leaves links out of account."""
    broadcast_s: Seconds = 0.0
    """B: seconds from publishing to sampling, where links are left out of account."""
    load_s: Seconds = 0.0
    """Seconds for which an engine loads what has arrived; an offer may have its own."""
    pause_s: Seconds | None = None
    """Of these, in which it samples nothing; left out, load_s: all of them."""


class PlanRolloutTable(Table, frozen=True):
    """How rollouts are made."""

    rollout_s: Seconds = 60.0
    """g: seconds from handing out a prompt to its accepted result, 95th percentile."""
    rollout_p50_s: Seconds | None = None
    """The same, median; says how much is late if nobody paces."""
    headroom: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.1
    """h: supply beyond what is required; pays for the spread of rollouts."""
    sureness: Annotated[float, msgspec.Meta(ge=0, le=6)] = 1.8
    """Standard deviations of supply to provide against absence on top."""


class LimitsTable(Table, frozen=True):
    """What you allow."""

    max_staleness: Staleness = 6
    """The largest S to consider; rewards suffer from more."""
    min_staleness: Staleness = 0
    """The smallest S to consider; set both to the same to fix S."""
    publish_every: Count | None = None
    """kappa; left out, the cheapest that the delays allow is found."""
    max_usd_per_hour: Price | None = None
    """Of all nodes together."""
    max_nodes: Count | None = None
    """Nodes at once."""
    max_node_usd_per_hour: Price | None = None
    """Of one node."""


class OfferTable(Table, frozen=True):
    """Nodes of one kind that can be had: the market is a list of these."""

    name: Name
    """What you call the kind."""
    rollouts_per_s: Rate
    """Of one, accepted, while it is there."""
    usd_per_hour: Price
    """Of one."""
    count: Count = 1
    """How many there are."""
    upload_mbit: Annotated[float, msgspec.Meta(ge=0, le=1e7)] | None = None
    """What one can upload, in Mbit/s; left out, the median of the other kinds."""
    download_mbit: Mbit | None = None
    """What one can download; left out, as fast as need be."""
    load_s: Seconds | None = None
    """Seconds to load new weights; left out, as in [weights]."""
    startup_s: Seconds = 0.0
    """Paid seconds until its first rollout."""
    expected_stay_h: Rate | None = None
    """Hours until it is gone and another has to start; left out, it stays."""
    availability: Share = 1.0
    """The share of time for which it is there."""
    egress_usd_per_gb: Price = 0.0
    """For what it uploads."""


class CentralTable(Table, frozen=True):
    """The alternative: the same learner with rollout machines beside it in a data centre."""

    rollouts_per_s: Rate
    """Of one rollout machine."""
    usd_per_hour: Price
    """Of one."""
    name: Name = "data centre GPU"
    """What you call one."""
    count: Count = 100_000
    """How many can be had."""
    broadcast_s: Seconds = 0.0
    """B inside the data centre, loading included."""
    headroom: Annotated[float, msgspec.Meta(ge=0, le=4)] = 0.1
    """As in [rollouts]."""
    colocated_rollouts_per_s: Rate | None = None
    """If set: also compare with a learner that makes its rollouts itself, at this rate, and
    trains afterwards."""


class Assumptions(Table, frozen=True):
    """All of it."""

    learner: PlanLearnerTable = PlanLearnerTable()
    weights: WeightsTable = WeightsTable()
    rollouts: PlanRolloutTable = PlanRolloutTable()
    limits: LimitsTable = LimitsTable()
    central: CentralTable | None = None
    offer: Annotated[tuple[OfferTable, ...], msgspec.Meta(max_length=MAX_KINDS)] = ()


def load_assumptions(path: Path) -> Assumptions:
    """Return what the file at ``path`` says, checked.

    Raises:
        ConfigError: whatever is wrong with it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as exc:
        hint = "; `swarm plan --example` prints one" if isinstance(exc, FileNotFoundError) else ""
        raise ConfigError(f"{path}: can't be read: {exc.strerror}{hint}") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: over {_MAX_FILE_BYTES} bytes; are these assumptions?")
    try:
        table = tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text in UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None
    try:
        return check_assumptions(convert_table(table, Assumptions))
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from None


def check_assumptions(assumptions: Assumptions) -> Assumptions:
    """Return ``assumptions``, of which none contradicts another.

    Raises:
        ConfigError: two of them do.
    """
    limits, rollouts = assumptions.limits, assumptions.rollouts
    if limits.min_staleness > limits.max_staleness:
        raise ConfigError(
            f"limits.min_staleness: {limits.min_staleness} is more than max_staleness, "
            f"{limits.max_staleness}"
        )
    if limits.publish_every is not None and limits.publish_every > limits.max_staleness + 1:
        raise ConfigError(
            f"limits.publish_every: {limits.publish_every} is more than max_staleness + 1, "
            f"{limits.max_staleness + 1}: the learner would wait for ever"
        )
    if rollouts.rollout_p50_s is not None and rollouts.rollout_p50_s > rollouts.rollout_s:
        raise ConfigError(
            f"rollouts.rollout_p50_s: {rollouts.rollout_p50_s:g} is more than rollout_s, the "
            f"95th percentile, {rollouts.rollout_s:g}"
        )
    names = Counter(offer.name for offer in assumptions.offer)
    for name, count in names.items():
        if count > 1:
            raise ConfigError(f"offer.name: {name!r} is the name of {count} offers")
    return assumptions


EXAMPLE_OFFERS: Final = (
    OfferTable(
        name="RTX 4090",
        count=200,
        rollouts_per_s=0.55,
        usd_per_hour=0.35,
        upload_mbit=100.0,
        download_mbit=300.0,
        startup_s=180.0,
        expected_stay_h=12.0,
        availability=0.95,
    ),
    OfferTable(
        name="A100",
        count=20,
        rollouts_per_s=1.1,
        usd_per_hour=1.4,
        upload_mbit=1000.0,
        download_mbit=1000.0,
    ),
)
EXAMPLE_CENTRAL: Final = CentralTable(rollouts_per_s=2.2, usd_per_hour=2.4, broadcast_s=5.0)
EXAMPLE: Final = Assumptions(
    learner=PlanLearnerTable(usd_per_hour=19.2, upload_mbit=1000.0),
    weights=WeightsTable(payload_mb=400.0, load_s=5.0),
    central=EXAMPLE_CENTRAL,
    offer=EXAMPLE_OFFERS,
)
_HEAD: Final = """\
# Assumptions of a plan: `swarm plan THIS_FILE`. Keys may be left out where they have a default.
# The numbers are placeholders: put in your own.
"""


def example_assumptions() -> str:
    """Return a file of assumptions with every key explained."""
    names = ("learner", "weights", "rollouts", "limits", "central")
    parts = [
        _HEAD,
        *(_table(f"[{name}]", getattr(EXAMPLE, name), explain=True) for name in names),
        *(_table("[[offer]]", x, explain=i == 0) for i, x in enumerate(EXAMPLE_OFFERS)),
    ]
    return "\n".join(parts)


def _table(title: str, table: Table, *, explain: bool) -> str:
    docs = field_docs(type(table))
    lines = [*(comment(summary(type(table))) if explain else ()), title]
    for field in msgspec.structs.fields(table):
        value: Any = getattr(table, field.name)
        if not explain and not field.required and value == default_of(field):
            continue
        if explain:
            lines += ["", *comment(docs.get(field.name, ""))]
        lines.append(f"# {field.name} =" if value is None else f"{field.name} = {toml_of(value)}")
    return "\n".join(lines) + "\n"
