"""How long a broadcast takes, as it depends on who takes part.

To hold F bytes ``load_i`` seconds before B, a node has to receive at the rate
``r_i = F / tau_i`` with ``tau_i = (B - load_i) / 1.15``, where 1.15 is what a real broadcast
takes over the bound. That is possible for all together iff::

    r_i <= d_i   and   r_i <= u_s   for each,   and   sum r_i <= u_s + sum u_i

For a given B each is linear in who takes part; a good uploader pays for others. With equal
loads, B is ``load + 1.15 T*``, see
:func:`echo2swarm.weights.overlay.broadcast_bound.broadcast_bound_s`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from echo2swarm.scheduling.selection.offers import BROADCAST_SLACK, Need, NodeOffer

Floats = NDArray[np.float64]
_MAX_NEWTON: Final = 60
_PRESENT: Final = 1e-6
"""Of a relaxed program's fractions, what is more than a rounding error."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkModel:
    """Links of all variables."""

    payload_bytes: float
    source_bytes_per_s: float
    up: Floats
    load_s: Floats
    alone_s: Floats
    """B of each if it were the only one: no B is smaller with it in the set."""

    @classmethod
    def of(cls, kinds: Sequence[NodeOffer], need: Need) -> "LinkModel | None":
        """Return the links, or None where nothing is known of them."""
        source = need.source_bytes_per_s
        if not need.has_links or source is None:
            return None
        if not kinds or any(o.upload_bytes_per_s is None for o in kinds):
            return None
        return cls(
            payload_bytes=need.payload_bytes,
            source_bytes_per_s=source,
            up=np.array([o.upload_bytes_per_s for o in kinds], dtype=float),
            load_s=np.array([o.load_s for o in kinds], dtype=float),
            alone_s=np.array([alone_s(o, need) for o in kinds], dtype=float),
        )

    def is_in_time(self, broadcast_s: float) -> NDArray[np.bool_]:
        """Return which can have the weights within ``broadcast_s``."""
        return self.alone_s <= broadcast_s * (1 + 1e-12)

    def burden(self, broadcast_s: float) -> Floats:
        """Return by how much each receives faster than it sends, if all is to be there by then.

        Of those that can't have it in time, the value means nothing.
        """
        tau_s = np.maximum(broadcast_s - self.load_s, 1e-12) / BROADCAST_SLACK
        return self.payload_bytes / tau_s - self.up

    def broadcast_s(self, x: Floats) -> float:
        """Return the least time in which all of ``x`` can have the weights."""
        taken = x > _PRESENT
        if not taken.any():
            return 0.0
        count, load_s, up = x[taken], self.load_s[taken], self.up[taken]
        found_s = float(self.alone_s[taken].max())
        capacity = self.source_bytes_per_s + float(count @ up)
        weight = BROADCAST_SLACK * self.payload_bytes * count
        # The sum of rates is convex and falls with B: from the left, Newton comes closer each time.
        for _ in range(_MAX_NEWTON):
            rest_s = found_s - load_s
            excess = float((weight / rest_s).sum()) - capacity
            if excess <= 1e-12 * capacity:
                break
            found_s += excess / float((weight / rest_s**2).sum())
        return found_s


def alone_s(offer: NodeOffer, need: Need) -> float:
    """Return how long it takes at least until ``offer`` samples with new weights."""
    source = need.source_bytes_per_s
    if not need.has_links or source is None:
        return need.broadcast_s
    rate = min(source, inf if offer.download_bytes_per_s is None else offer.download_bytes_per_s)
    if rate <= 0:
        return inf
    return offer.load_s + BROADCAST_SLACK * need.payload_bytes / rate
