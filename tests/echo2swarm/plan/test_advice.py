"""One line of advice: what is wrong, by how much, and what would help."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from echo2swarm.plan.advice import Situation, advise
from echo2swarm.scheduling.capacity import LearnerLoad
from echo2swarm.scheduling.selection import Effort, Limits, Need, NodeOffer, select


def need(
    *, bound: int = 2, every: int = 1, rollout_s: float = 2.0, payload_bytes: float = 0.0
) -> Need:
    workload = LearnerLoad(
        rollouts_per_step=64, train_s=8.0, max_staleness=bound, publish_every=every
    )
    return Need(
        workload=workload,
        rollout_s=rollout_s,
        payload_bytes=payload_bytes,
        source_bytes_per_s=1e6 if payload_bytes else None,
        z=0.0,
    )


def nodes(
    number: int, *, rollouts_per_s: float = 1.0, usd_per_hour: float = 0.4
) -> list[NodeOffer]:
    return [
        NodeOffer(
            key=f"peer-{i}",
            usd_per_hour=usd_per_hour,
            rollouts_per_s=rollouts_per_s,
            num_active=1,
        )
        for i in range(number)
    ]


def situation(offers: list[NodeOffer], **changes: object) -> Situation:
    found = Situation(
        num_nodes=len(offers),
        need=need(),
        broadcast_s=1.0,
        offers=offers,
        names={offer.key: f"rig-{offer.key[-1]}" for offer in offers},
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_without_nodes_the_ticket_is_to_be_handed_out() -> None:
    assert advise(situation([])) == "no node is connected: hand out the ticket"


def test_a_finished_run_needs_nothing() -> None:
    assert advise(situation([], is_finished=True)) == "the run is finished"


def test_before_there_are_measurements_it_says_what_is_waited_for() -> None:
    assert advise(situation(nodes(3), need=None)).startswith("measuring: the first update")
    idle = nodes(3, rollouts_per_s=0.0)
    assert advise(situation(idle)).startswith("measuring: no node")


def test_a_learner_that_is_fed_is_busy() -> None:
    assert advise(situation(nodes(9))) == "the learner is busy"


def test_too_few_nodes_says_how_many_of_which_to_add() -> None:
    said = advise(situation(nodes(6), busy_share=0.74))

    assert said == "learner 74 % busy; short 2.80 rollouts/s; add 3 nodes like rig-0"


def test_the_advice_is_of_the_best_value() -> None:
    dear, cheap = nodes(2, usd_per_hour=2.0), replace(nodes(1)[0], key="peer-9")
    said = advise(situation([*dear, cheap], names={"peer-9": "cheap one"}))

    assert said.endswith("add 6 nodes like cheap one")


def test_nodes_that_are_hopelessly_slow_are_not_to_be_multiplied() -> None:
    assert advise(situation(nodes(1, rollouts_per_s=1e-300))).endswith("add faster nodes")


def test_a_limit_of_the_owners_that_is_in_the_way_is_named() -> None:
    offers = [replace(offer, num_active=int(i < 4)) for i, offer in enumerate(nodes(12))]
    limits = Limits(max_usd_per_hour=1.7)
    shortfall = select(offers, need(), limits, effort=Effort.GREEDY).shortfall
    assert shortfall is not None

    said = advise(situation(offers, limits=limits, shortfall=shortfall))

    assert "allow $3.60/h" in said


def test_nodes_that_are_too_many_are_counted_with_what_they_cost() -> None:
    said = advise(situation(nodes(14), busy_share=1.0))

    assert said == "learner 100 % busy; 5 nodes could be released, saving $2.00/h"


def test_free_nodes_save_nothing() -> None:
    said = advise(situation(nodes(14, usd_per_hour=0.0), busy_share=1.0))

    assert said == "learner 100 % busy; 5 nodes could be released"


def test_nodes_on_standby_are_not_to_be_released_again() -> None:
    standby = [replace(offer, key=f"x-{offer.key}", num_active=0) for offer in nodes(9)]

    assert advise(situation([*nodes(9), *standby])) == "the learner is busy"


def test_a_bound_that_does_not_cover_the_delays_is_told_with_one_that_does() -> None:
    said = advise(situation(nodes(12), broadcast_s=20.0, busy_share=0.6))

    assert said == (
        "learner 60 % busy; new weights take 20 s and a rollout 2.00 s, more than max_staleness 2 "
        "covers; raise max_staleness to 4"
    )


def test_publishing_more_often_may_do_instead() -> None:
    said = advise(situation(nodes(12), need=need(bound=3, every=3), broadcast_s=9.0))

    assert said.endswith("raise max_staleness to 5, or publish every step")


def test_an_upload_that_is_too_slow_is_told_with_one_that_is_not() -> None:
    slow = need(bound=1, payload_bytes=8e6)
    said = advise(situation(nodes(12), need=replace(slow, rollout_s=1.0), broadcast_s=9.0))
    assert "upload faster: 8.00 s of it at 8.00 Mbit/s" in said

    roomier = need(bound=2, payload_bytes=15e6)
    said = advise(situation(nodes(12), need=roomier, broadcast_s=16.0))
    assert "or upload at 24.0 Mbit/s (the weights alone take 15.0 s of it at 8.00 Mbit/s)" in said


def test_a_broadcast_that_is_not_slow_for_the_upload_is_no_reason_to_upload_faster() -> None:
    light = need(bound=2, payload_bytes=1e6)

    assert "upload" not in advise(situation(nodes(12), need=light, broadcast_s=20.0))


def test_on_policy_no_number_of_nodes_is_enough() -> None:
    assert "raise max_staleness to 1" in advise(situation(nodes(30), need=need(bound=0)))


def test_what_should_be_enough_but_is_not_yet_is_said() -> None:
    assert "should be busier soon" in advise(situation(nodes(10), busy_share=0.5))


def test_names_of_strangers_can_not_steer_the_terminal() -> None:
    said = advise(situation(nodes(1), names={"peer-0": "\x1b[31mred\n"}))

    assert said.isprintable()


@given(
    bound=st.integers(0, 5),
    every=st.integers(1, 3),
    seconds=st.tuples(st.floats(0, 1000), st.floats(0, 1000)),
    speeds=st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=6),
    busy_share=st.one_of(st.none(), st.floats(0, 1)),
)
def test_there_is_always_one_line(
    bound: int,
    every: int,
    seconds: tuple[float, float],
    speeds: list[float | None],
    busy_share: float | None,
) -> None:
    offers = [
        NodeOffer(key=f"{i}", usd_per_hour=i, rollouts_per_s=speed, num_active=i % 2)
        for i, speed in enumerate(speeds)
    ]
    wish = need(bound=max(bound, every - 1), every=every, rollout_s=seconds[0])

    said = advise(situation(offers, need=wish, broadcast_s=seconds[1], busy_share=busy_share))

    assert said
    assert "\n" not in said
    assert len(said) <= 400
    assert "nan" not in said
    assert "inf" not in said
