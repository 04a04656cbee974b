"""What a node tells of its troubles is short, harmless, and says what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.trouble import trouble_of
from protocols.activation import MAX_TROUBLE_CHARS, Trouble, TroubleKind


def test_no_errors_are_no_trouble() -> None:
    assert trouble_of({}) is None
    assert trouble_of({TroubleKind.ENGINE: "", TroubleKind.FETCH: ""}) is None


def test_what_explains_the_others_is_told() -> None:
    errors = {TroubleKind.FETCH: "no peers", TroubleKind.APPLY: "out of memory"}

    assert trouble_of(errors) == Trouble(TroubleKind.APPLY, "out of memory")
    assert trouble_of({**errors, TroubleKind.ENGINE: "killed"}) == Trouble(
        TroubleKind.ENGINE, "killed"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("can't read /home/ada/secret/config.json: denied", "can't read config.json: denied"),
        ("see ~/swarm/logs/engine.log.", "see engine.log."),
        (r"C:\\Users\\ada\\model.safetensors is torn", "model.safetensors is torn"),
        ("prompt of 60 and/or 16 new tokens", "prompt of 60 and/or 16 new tokens"),
        ("line\n\x1b[31mred\u202e", "line [31mred"),
    ],
)
def test_folders_and_control_characters_stay_here(error: str, told: str) -> None:
    trouble = trouble_of({TroubleKind.SAMPLE: error})

    assert trouble is not None
    assert trouble.detail == told


@given(st.text(min_size=1))
def test_any_error_fits_into_a_heartbeat(error: str) -> None:
    trouble = trouble_of({TroubleKind.ENGINE: error})

    assert trouble is not None
    assert len(trouble.detail) <= MAX_TROUBLE_CHARS
    assert trouble.detail == "" or trouble.detail.isprintable()
