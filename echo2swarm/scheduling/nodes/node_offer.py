"""What the selector is told of one node, made of what was measured of it."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from echo2swarm.scheduling.selection import NodeOffer, effective
from echo2swarm.scheduling.selection.hysteresis import Dwell
from echo2swarm.scheduling.selection.speed import Presence, Speed

MAX_PRIOR: Final = 2.0
"""No claim counts for more than this times the median of them."""


def credible_rates(claims: Sequence[float], measured: Iterable[float]) -> list[float]:
    """Return what the nodes' claims of their speed count for until they are measured.

    A claim that nothing confirms yet counts for no more than the fastest node that was
    measured, so that nobody takes over a run by a claim alone.

    Args:
        claims: rollouts per second, one for each node that makes a claim.
        measured: of the nodes that were measured.
    """
    if not claims:
        return []
    most = max(measured, default=0.0) or MAX_PRIOR * median(claims)
    return [min(claim, most) for claim in claims]


def mean_and_std(
    speed: Speed | None, presence: Presence, now_s: float
) -> tuple[float | None, float]:
    """Return how fast a node is, with the times in which it is away; None if that is unknown."""
    if speed is None:
        return None, 0.0
    return effective(speed.rollouts_per_s, speed.std, availability=presence.availability(now_s))


def node_offer(
    *,
    key: str,
    usd_per_hour: float,
    rate: tuple[float | None, float],
    presence: Presence,
    dwell: Dwell,
    link_bytes_per_s: tuple[float | None, float | None],
    load_s: float,
    startup_s: float,
    is_measured: bool,
    is_ready: bool,
    now_s: float,
) -> NodeOffer:
    """Return the offer of a node.

    Args:
        key: its name.
        usd_per_hour: its price.
        rate: see :func:`mean_and_std`.
        presence: how much of the time it is here.
        dwell: when it was last told to work or to stand by.
        link_bytes_per_s: up and down.
        load_s: from a version's last byte to its use.
        startup_s: from activation to its first accepted rollout.
        is_measured: whether a longer trial would hardly tell more.
        is_ready: whether it could sample at once.
        now_s: the time.
    """
    mean, std = rate
    upload, download = link_bytes_per_s
    may_switch = dwell.may_switch(startup_s, now_s)
    return NodeOffer(
        key=key,
        usd_per_hour=usd_per_hour,
        rollouts_per_s=mean,
        rollouts_per_s_std=std,
        upload_bytes_per_s=upload,
        download_bytes_per_s=download,
        load_s=load_s,
        startup_s=startup_s,
        expected_stay_s=presence.stay_s(now_s),
        num_active=int(dwell.is_active),
        may_start=dwell.is_active or may_switch,
        may_stop=may_switch,
        is_measured=is_measured,
        is_ready=is_ready,
    )
