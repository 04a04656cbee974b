from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.admission.unread import MAX_BYTES, MAX_STRANGERS_BYTES, who_has_to_go
from protocols.ids import PeerId

MIB = 1024 * 1024
PROVEN = frozenset(PeerId(f"proven {i}") for i in range(3))


def gone(**held_mib: int) -> list[str]:
    held = {PeerId(name.replace("_", " ")): mib * MIB for name, mib in held_mib.items()}
    return list(who_has_to_go(held, is_proven=PROVEN.__contains__))


def test_nobody_has_to_go_while_there_is_room() -> None:
    assert gone(a=30, b=30, proven_0=100) == []


def test_of_strangers_who_hold_too_much_the_largest_goes_first() -> None:
    assert gone(a=1, b=50, c=30) == ["b"]


def test_the_proven_do_not_go_for_what_strangers_hold() -> None:
    assert gone(a=40, b=40, proven_0=150) == ["a"]


def test_whoever_holds_most_goes_when_it_is_too_much_for_all() -> None:
    assert gone(a=40, proven_0=200, proven_1=100) == ["proven 0"]


@given(
    st.dictionaries(
        st.sampled_from([*PROVEN, *(PeerId(f"stranger {i}") for i in range(5))]),
        st.integers(0, 300 * MIB),
    )
)
def test_what_is_left_is_never_too_much(held: dict[PeerId, int]) -> None:
    out = who_has_to_go(held, is_proven=PROVEN.__contains__)
    left = {peer: num_bytes for peer, num_bytes in held.items() if peer not in out}

    assert len(set(out)) == len(out)
    assert sum(left.values()) <= MAX_BYTES
    assert sum(n for peer, n in left.items() if peer not in PROVEN) <= MAX_STRANGERS_BYTES
