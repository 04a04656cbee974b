"""Who is told to others as belonging to a run: decided without a network."""

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.network.admission.provider_table import (
    MAX_KEYS,
    MAX_PER_SUBNET,
    MAX_PROVIDERS,
    TTL_S,
    ProviderTable,
)
from protocols.ids import PeerId

KEY = b"key"
OWN = PeerId("own")


def make(present: set[str]) -> ProviderTable:
    return ProviderTable(OWN, lambda peer: peer in present)


def tell(
    table: ProviderTable, name: str, host: str, *, key: bytes = KEY, now_s: float = 0.0
) -> None:
    where = (f"/ip4/{host}/tcp/4150",)
    table.tell(key, PeerId(name), where, seen_at=host, now_s=now_s)


def names(table: ProviderTable, *, now_s: float = 0.0) -> set[str]:
    return {provider.peer for provider in table.providers(KEY, now_s=now_s)}


def crowd(table: ProviderTable, *, num: int = 60, host: str = "7.7.7.7") -> None:
    for number in range(num):
        tell(table, f"crowd-{number}", host)


def test_a_crowd_from_one_subnet_leaves_half_of_the_room_to_others() -> None:
    table = make(set())
    crowd(table)
    assert len(names(table)) == MAX_PER_SUBNET
    for number in range(10):
        tell(table, f"honest-{number}", f"9.9.{number}.1")

    assert {f"honest-{number}" for number in range(10)} <= names(table)


def test_who_is_here_takes_the_place_of_who_has_gone() -> None:
    present = {f"honest-{number}" for number in range(20)}
    table = make(present)
    for number in range(60):
        tell(table, f"gone-{number}", f"7.7.{number}.7")
    for name in present:
        tell(table, name, "9.9.9.9")

    assert len(names(table) & present) == MAX_PER_SUBNET


def test_those_that_were_reached_stay_whoever_comes() -> None:
    present = {f"crowd-{number}" for number in range(200)}
    table = make(present)
    good = {f"good-{number}" for number in range(5)}
    for name in good:
        tell(table, name, "9.9.9.9")
        table.reached(PeerId(name))
    for number in range(200):
        tell(table, f"crowd-{number}", f"7.7.{number}.7")

    assert good <= names(table)
    assert {p.peer for p in table.providers(KEY, now_s=0)[:5]} == good


def test_who_was_not_found_where_it_said_is_forgotten_unless_it_is_here() -> None:
    table = make({"here"})
    for name in ("here", "gone"):
        tell(table, name, "9.9.9.9")
        table.failed(PeerId(name))

    assert names(table) == {"here"}


def test_a_new_address_has_to_be_proven_anew() -> None:
    table = make(set())
    tell(table, "a", "9.9.9.9")
    table.reached(PeerId("a"))
    tell(table, "a", "8.8.8.8")

    assert [p.is_reached for p in table.providers(KEY, now_s=0)] == [False]


def test_we_ourselves_are_never_pushed_out() -> None:
    present = {f"crowd-{number}" for number in range(60)}
    table = make(present)
    tell(table, OWN, "127.0.0.1")
    for name in present:
        tell(table, name, f"7.{name[6:]}.0.1")
        table.reached(PeerId(name))

    assert OWN in names(table)


def test_keys_of_strangers_are_few_and_never_cost_ours() -> None:
    table = make({"here"})
    tell(table, OWN, "127.0.0.1")
    tell(table, "here", "9.9.9.9", key=b"other")
    for number in range(200):
        tell(table, "stranger", "7.7.7.7", key=f"key-{number}".encode())
    known = [
        key
        for key in (KEY, b"other", *(f"key-{number}".encode() for number in range(200)))
        if table.providers(key, now_s=0)
    ]

    assert len(known) <= MAX_KEYS
    assert {KEY, b"other"} <= set(known)


def test_what_is_not_told_again_is_forgotten() -> None:
    table = make(set())
    tell(table, "a", "9.9.9.9")

    assert names(table, now_s=TTL_S + 1) == set()


@given(
    told=st.lists(
        st.tuples(
            st.integers(0, 60), st.integers(0, 5), st.sampled_from(["tell", "reached", "failed"])
        ),
        max_size=200,
    ),
    present=st.sets(st.integers(0, 60)),
)
def test_whatever_is_told_the_bounds_hold(
    told: list[tuple[int, int, str]], present: set[int]
) -> None:
    table = make({str(number) for number in present})
    for number, subnet, what in told:
        if what == "tell":
            tell(table, str(number), f"9.9.{subnet}.{number}")
        elif what == "reached":
            table.reached(PeerId(str(number)))
        else:
            table.failed(PeerId(str(number)))
        found = table.providers(KEY, now_s=0)
        assert len(found) <= MAX_PROVIDERS
        subnets = [provider.subnet for provider in found]
        assert max(map(subnets.count, subnets), default=0) <= MAX_PER_SUBNET
