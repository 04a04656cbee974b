"""Types of command-line options."""

import math
from typing import Any

import click

from echo2swarm.system.devices import DEVICES, is_device


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


class Device(click.types.StringParamType):
    """What a model may be asked to run on."""

    name = "device"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str:
        """Return ``value`` if it names a device; whether that is there is not looked at."""
        text = str(value)
        if not is_device(text):
            self.fail(f"{text!r} is none of {DEVICES}.", param, ctx)
        return text
