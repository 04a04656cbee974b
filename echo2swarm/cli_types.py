"""Types of command-line options."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range of numbers that NaN is not in, though it is neither too small nor too large."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return ``value`` as a number in the range."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number
