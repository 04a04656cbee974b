"""Why something was not accepted, as it is recorded and answered."""

from dataclasses import dataclass

from protocols.reasons import Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not accepted."""

    reason: Reason
    detail: str
