"""How completions are sampled: set by the learner, the same for every node of a run."""

from typing import Annotated, Final

import msgspec

from protocols.codec import Message

MAX_NEW_TOKENS: Final = 131_072
MAX_STOP_TOKENS: Final = 64

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class SamplingParams(Message, frozen=True):
    """Full-distribution sampling at one temperature: nothing is cut off.

    Top-p, top-k, min-p and penalties do not exist here: they would make the
    behaviour logprobs those of another distribution than the learner trains.
    """

    temperature: Annotated[float, msgspec.Meta(gt=0, le=10)]
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_NEW_TOKENS)]
    stop_token_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=MAX_STOP_TOKENS)]
    """Sampling one of these ends the completion; the token and its logprob are kept."""
