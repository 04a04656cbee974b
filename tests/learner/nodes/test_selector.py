"""Activation: cheapest first, within limits, the same answer every time."""

from hypothesis import given
from hypothesis import strategies as st

from learner.nodes.selector import Limits, Offer, select
from protocols.ids import PeerId

NO_LIMITS = Limits()


def offer(name: str, usd: float, rate: float | None = 1.0, *, is_active: bool = False) -> Offer:
    return Offer(peer=PeerId(name), usd_per_hour=usd, rollouts_per_s=rate, is_active=is_active)


def active(
    offers: list[Offer], *, needed: float | None = None, limits: Limits = NO_LIMITS
) -> set[str]:
    choices = select(offers, needed_rollouts_per_s=needed, limits=limits)
    return {peer for peer, choice in choices.items() if choice.is_active}


def test_everybody_works_until_the_need_is_known() -> None:
    assert active([offer("a", 1), offer("b", 2)]) == {"a", "b"}


def test_the_cheapest_are_taken_up_to_what_is_needed() -> None:
    assert active([offer("dear", 3), offer("cheap", 1), offer("mid", 2)], needed=2.0) == {
        "cheap",
        "mid",
    }


def test_a_node_of_unknown_speed_is_tried() -> None:
    assert active([offer("new", 1, None), offer("known", 2)], needed=1.0) == {"new", "known"}


def test_an_active_node_is_kept_while_the_others_hardly_suffice() -> None:
    offers = [offer("a", 1, 1.1), offer("b", 2, is_active=True)]

    assert active(offers, needed=1.0) == {"a", "b"}
    assert active(offers, needed=0.8) == {"a"}


def test_limits_on_number_and_cost_are_kept_and_named() -> None:
    offers = [offer("a", 1), offer("b", 2), offer("c", 3)]

    assert active(offers, limits=Limits(max_nodes=2)) == {"a", "b"}
    choices = select(offers, needed_rollouts_per_s=None, limits=Limits(max_usd_per_hour=3.5))
    assert [choice.is_active for choice in choices.values()] == [True, True, False]
    assert "max_usd_per_hour" in choices[PeerId("c")].why


@given(
    prices=st.lists(st.floats(0, 10), min_size=1, max_size=12),
    budget=st.floats(0.1, 30),
    most=st.integers(1, 12),
    needed=st.none() | st.floats(0, 20),
)
def test_the_budget_is_never_exceeded_and_order_does_not_matter(
    prices: list[float], budget: float, most: int, needed: float | None
) -> None:
    offers = [offer(f"n{i:02d}", price) for i, price in enumerate(prices)]
    limits = Limits(max_nodes=most, max_usd_per_hour=budget)

    chosen = active(offers, needed=needed, limits=limits)

    assert chosen == active(offers[::-1], needed=needed, limits=limits)
    assert len(chosen) <= most
    assert sum(o.usd_per_hour for o in offers if o.peer in chosen) <= budget + 1e-9
    why = select(offers, needed_rollouts_per_s=needed, limits=limits)
    assert all(0 < len(choice.why) <= 200 for choice in why.values())
