"""Who and what gets its share of training: rollouts issued, accepted and trained, by kind.

A rollout that was issued and never accepted has no length of its own; it counts with the
mean of its group's, as its prompt is the same. What is starved shows as a share of what was
trained on that is well below its share of what was issued.
"""

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

STARVED_BELOW: Final = 0.8
"""A kind whose share of training is less than this times its share of what was issued."""
MIN_ISSUED: Final = 20
"""Of fewer rollouts nothing is said."""
NONE: Final = "not known"

_SAMPLES: Final = """
WITH made AS (
    SELECT group_id, AVG(num_tokens) AS num_tokens, AVG(reward) AS reward
    FROM rollouts GROUP BY group_id
),
tries AS (
    SELECT lease_id, peer, group_id, sample_index FROM leased_samples JOIN leases USING (lease_id)
)
SELECT tries.peer, LENGTH(groups.prompt_tokens) / 4,
    CAST(COALESCE(rollouts.num_tokens, made.num_tokens) AS INTEGER), made.reward,
    COUNT(*), COUNT(rollouts.lease_id), COUNT(rollouts.trained_step)
FROM tries
JOIN groups USING (group_id)
LEFT JOIN made USING (group_id)
LEFT JOIN rollouts USING (lease_id, group_id, sample_index)
GROUP BY 1, 2, 3, 4
"""


@dataclass(slots=True, kw_only=True)
class KindShare:
    """What became of the rollouts of one kind."""

    name: str
    num_issued: int = 0
    """Leased; one that was leased twice counts twice."""
    num_accepted: int = 0
    num_trained: int = 0

    def add(self, num_issued: int, num_accepted: int, num_trained: int) -> None:
        """Count some more."""
        self.num_issued += num_issued
        self.num_accepted += num_accepted
        self.num_trained += num_trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """All rollouts, by one thing in which they differ."""

    by: str
    kinds: tuple[KindShare, ...]

    def issued_share(self, kind: KindShare) -> float:
        """Return a kind's share of what was issued."""
        return _share(kind.num_issued, sum(each.num_issued for each in self.kinds))

    def trained_share(self, kind: KindShare) -> float:
        """Return a kind's share of what was trained on."""
        return _share(kind.num_trained, sum(each.num_trained for each in self.kinds))

    @property
    def starved(self) -> tuple[KindShare, ...]:
        """The kinds that are trained on much less than they are issued."""
        return tuple(
            kind
            for kind in self.kinds
            if kind.num_issued >= MIN_ISSUED
            and kind.name != NONE
            and self.trained_share(kind) < STARVED_BELOW * self.issued_share(kind)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        starved = {kind.name for kind in self.starved}
        return {
            "by": self.by,
            "kinds": [
                {
                    **asdict(kind),
                    "issued_share": self.issued_share(kind),
                    "trained_share": self.trained_share(kind),
                    "is_starved": kind.name in starved,
                }
                for kind in self.kinds
            ],
        }


def read_shares(db: sqlite3.Connection, names: Mapping[str, str]) -> tuple[Shares, ...]:
    """Count the rollouts of a ledger.

    Args:
        db: the ledger.
        names: of nodes, by peer.
    """
    rows = db.execute(_SAMPLES).fetchall()
    by: dict[str, Callable[[Any], tuple[Any, str]]] = {
        "node": lambda row: (names.get(row[0], row[0][-8:]),) * 2,
        "prompt tokens": lambda row: _length(row[1]),
        "answer tokens": lambda row: _length(row[2]),
        "mean reward of the prompt": lambda row: _reward(row[3]),
    }
    return tuple(Shares(by=what, kinds=_count(rows, key)) for what, key in by.items())


def _count(
    rows: Iterable[tuple[Any, ...]], key: Callable[[Any], tuple[Any, str]]
) -> tuple[KindShare, ...]:
    found: dict[tuple[Any, str], KindShare] = {}
    for row in rows:
        order = key(row)
        found.setdefault(order, KindShare(name=order[1])).add(*row[4:])
    return tuple(found[order] for order in sorted(found))


def _length(num_tokens: int | None) -> tuple[float, str]:
    """Return the range of a length: from one power of two to the next."""
    if num_tokens is None:
        return float("inf"), NONE
    low = 1 << (max(1, num_tokens).bit_length() - 1)
    return low, str(low) if low == 1 else f"{low} to {2 * low - 1}"


def _reward(mean: float | None) -> tuple[float, str]:
    """Return the range of a mean reward; verifiers mostly give 0 to 1."""
    if mean is None:
        return float("inf"), NONE
    for limit, name in ((0.0, "0 or less"), (0.25, "to 0.25"), (0.5, "to 0.5"), (0.75, "to 0.75")):
        if mean <= limit:
            return limit, name
    return (1.0, "below 1") if mean < 1 else (2.0, "1 or more")


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
