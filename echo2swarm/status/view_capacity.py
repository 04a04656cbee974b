"""What the capacity model says of a run, in the words of ``swarm status``. Pure."""

from typing import Final

from echo2swarm.text.format import format_percent, format_rate, format_seconds
from protocols.status import Outlook, Quantity

_BINDS: Final = {
    "learner": "the learner sets the pace",
    "supply": "rollouts are short",
    "latency": "versions come late",
}


def forecast_text(outlook: Outlook | None) -> str:
    """Return what stands beside the measured busy share."""
    if outlook is None or outlook.busy_share is None:
        return ""
    return f"   forecast {format_percent(outlook.busy_share)}"


def outlook_facts(outlook: Outlook | None, *, plain: bool) -> list[tuple[str, str]]:
    """Return lines for the header: label and text."""
    if outlook is None:
        return []
    measured = [
        f"{name} {_quantity(quantity, plain=plain)}"
        for name, quantity in (
            ("update", outlook.train),
            ("broadcast", outlook.broadcast),
            ("rollout", outlook.rollout),
        )
        if quantity is not None
    ]
    facts = [("measured", ";  ".join(measured))] if measured else []
    if outlook.busy_share is not None:
        facts.append(("capacity", _capacity(outlook)))
    if outlook.usd_per_hour > 0:
        facts.append(("cost", _cost(outlook)))
    return facts


def _quantity(quantity: Quantity, *, plain: bool) -> str:
    """Return median, 95th percentile, and what they rest on."""
    basis = "assumed" if quantity.is_prior else f"{quantity.num_samples}x"
    dash = "-" if plain else "\u2013"
    return f"{format_seconds(quantity.p50)}{dash}{format_seconds(quantity.p95)} ({basis})"


def _capacity(outlook: Outlook) -> str:
    required = (
        "the learner waits at any supply"
        if outlook.required_rollouts_per_s is None
        else f"{format_rate(outlook.required_rollouts_per_s)}/s required"
    )
    parts = [f"{format_rate(outlook.capacity_rollouts_per_s)}/s possible, {required}"]
    if outlook.min_staleness is not None:
        parts.append(f"staleness {outlook.min_staleness} needed")
    if outlook.binds in _BINDS:
        parts.append(_BINDS[outlook.binds])
    wasted = [
        f"{format_percent(share)} {name}"
        for name, share in (("refused", outlook.refused_share), ("dropped", outlook.dropped_share))
        if share is not None and share >= 0.005
    ]
    return ";  ".join([*parts, *wasted])


def _cost(outlook: Outlook) -> str:
    text = f"${outlook.usd_per_hour:.2f}/h for the active nodes"
    if outlook.usd_per_million_tokens is not None:
        text += f";  ${outlook.usd_per_million_tokens:.3g} per million trained tokens"
    return text
