"""What a model may be asked to run on, by name; whether that is there is not looked at."""

import re
from typing import Final

DEVICES: Final = '"auto", "cpu", "cuda" or "cuda:N"'
_DEVICE: Final = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


def is_device(name: str) -> bool:
    """Whether ``name`` is one of :data:`DEVICES`."""
    return _DEVICE.fullmatch(name) is not None
