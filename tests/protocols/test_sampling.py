import msgspec
import pytest

from protocols.codec import decode
from protocols.errors import MalformedMessageError
from protocols.sampling import MAX_STOP_TOKENS, SamplingParams

LAWFUL = {"temperature": 1.0, "max_new_tokens": 8, "stop_token_ids": [0]}


def read(**changes: object) -> SamplingParams:
    return decode(msgspec.msgpack.encode({**LAWFUL, **changes}), SamplingParams, max_bytes=4096)


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p", "repetition_penalty"])
def test_what_would_cut_off_the_distribution_cannot_be_said(name: str) -> None:
    with pytest.raises(MalformedMessageError, match=name):
        read(**{name: 1})


@pytest.mark.parametrize("temperature", [0, -1.0, 10.1, float("nan"), float("inf")])
def test_a_temperature_without_meaning_is_refused(temperature: float) -> None:
    with pytest.raises(MalformedMessageError, match="temperature"):
        read(temperature=temperature)


def test_nothing_to_generate_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="max_new_tokens"):
        read(max_new_tokens=0)


def test_too_many_stop_tokens_are_refused() -> None:
    assert len(read(stop_token_ids=[1] * MAX_STOP_TOKENS).stop_token_ids) == MAX_STOP_TOKENS
    with pytest.raises(MalformedMessageError, match="stop_token_ids"):
        read(stop_token_ids=[1] * (MAX_STOP_TOKENS + 1))
