from hypothesis import given
from hypothesis import strategies as st

from learner.status.scalars import scalars_of, update_of


def test_every_number_has_a_name_with_a_group() -> None:
    record = {
        "step": 3,
        "unix_s": 1.0,
        "reward_mean": 0.5,
        "trainer": {"kl": 0.1, "is_not_finite": False, "clip": {"share": 0.25}},
        "by_staleness": {"0": {"kl": 0.2}},
        "eval/mean_at_k": 0.75,
    }
    assert scalars_of(record) == {
        "run/reward_mean": 0.5,
        "trainer/kl": 0.1,
        "trainer/is_not_finite": 0.0,
        "trainer/clip/share": 0.25,
        "by_staleness/0/kl": 0.2,
        "eval/mean_at_k": 0.75,
    }


def test_what_is_no_finite_number_or_has_a_curve_for_each_node_is_left_out() -> None:
    record = {
        "broadcast_s": None,
        "loss": float("nan"),
        "reward_std": float("inf"),
        "name": "run",
        "drift_by_peer": {"12D3": {"kl": 0.1}},
        "staleness": {"0": 64},
    }
    assert scalars_of(record) == {}


def test_a_line_is_about_its_update_or_the_version_that_was_evaluated() -> None:
    assert update_of({"step": 3, "eval/version": 2}) == 3
    assert update_of({"eval/version": 2}) == 2
    assert update_of({"unix_s": 1.0}) is None


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=3), _json, max_size=4))
def test_any_record_gives_finite_numbers_only(record: dict[str, object]) -> None:
    assert all(abs(value) < float("inf") for value in scalars_of(record).values())
