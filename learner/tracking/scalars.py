"""From a line of ``metrics.jsonl`` to named numbers; pure."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final

_NOT_CURVES: Final = frozenset(
    {"step", "unix_s", "eval/version", "drift_by_peer", "left_out_by_peer", "staleness"}
)
"""Where a point lies, and what has a curve for each node: those come and go by the hundreds."""
_OWN: Final = "run"
"""The group of what has none in its name."""


def scalars_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of one line under names such as ``trainer/kl``.

    What is not a finite number is left out: a curve has a gap there.
    """
    return dict(_flat(record, ()))


def step_of(record: Mapping[str, Any]) -> int | None:
    """Return the update that a line is about; None if about none."""
    step = record.get("step", record.get("eval/version"))
    return step if isinstance(step, int) else None


def _flat(record: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        path = (*above, name)
        if not above and name in _NOT_CURVES:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif isinstance(value, int | float) and isfinite(value):
            tag = "/".join(path)
            yield tag if "/" in tag else f"{_OWN}/{tag}", float(value)
