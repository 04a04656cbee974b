"""What a node tells of its links, and when it tells."""

import trio
from trio.testing import MockClock

from echo2swarm.weights.transfer.rate_limit import UploadBudget
from echo2swarm.weights.transfer.traffic import Traffic
from node.membership.link_reports import (
    CAPPED_S,
    MAX_WAITED_S,
    MEASURE_SENDING_S,
    TICK_S,
    Flow,
    LinkReporter,
    OwnCap,
)
from protocols.heartbeat import MAX_LINKS, Dial, LinkReport
from protocols.ids import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def test_a_transfer_is_told_of_when_it_begins_and_when_it_has_ended() -> None:
    flow = Flow()
    received = [0, 0, 5, 9, 9, 20, 20, 20, 20, 20, 21]
    told = [
        flow.look(i * TICK_S, sent_bytes=0, received_bytes=total)
        for i, total in enumerate(received)
    ]

    assert [i for i, is_told in enumerate(told) if is_told] == [2, 7, 10]
    assert flow.receiving_s == 4 * TICK_S


def test_sending_is_no_receiving_but_it_is_a_transfer() -> None:
    flow = Flow()
    assert flow.idle_s(100.0) == 100.0
    flow.look(0.0, sent_bytes=0, received_bytes=0)

    assert flow.look(1.0, sent_bytes=5, received_bytes=0)
    assert (flow.receiving_s, flow.sending_s) == (0.0, 1.0)
    assert flow.idle_s(4.0) == 3.0


def links_with(traffic: Traffic, dials: dict[PeerId, Dial]) -> LinkReporter:
    return LinkReporter(traffic, dials=lambda: dials, on_change=lambda: None)


def test_only_what_was_verified_counts_as_received() -> None:
    traffic = Traffic()
    traffic.add_sent(A, 10)
    traffic.add_received(A, 100)
    traffic.add_verified(A, 60)

    assert links_with(traffic, {}).reports() == (LinkReport(A, 10, 60, Dial.UNTRIED),)


def test_counters_are_told_again_only_when_they_grew_but_attempts_to_dial_always() -> None:
    traffic, dials = Traffic(), {B: Dial.FAILED, C: Dial.REACHED}
    links = links_with(traffic, dials)
    traffic.add_sent(A, 10)
    traffic.add_sent(B, 20)

    first, second = links.reports(), links.reports()
    traffic.add_verified(A, 5)
    third = links.reports()

    failed, reached = LinkReport(B, 20, 0, Dial.FAILED), LinkReport(C, 0, 0, Dial.REACHED)
    assert first == (failed, LinkReport(A, 10, 0, Dial.UNTRIED), reached)
    assert second == (failed, reached)
    assert third == (LinkReport(A, 10, 5, Dial.UNTRIED), failed, reached)


def test_of_too_many_links_those_wait_that_moved_least() -> None:
    traffic = Traffic()
    links = links_with(traffic, {})
    for number in range(2 * MAX_LINKS):
        traffic.add_sent(PeerId(f"peer-{number:03d}"), 1 + number)

    first, second, third = links.reports(), links.reports(), links.reports()

    assert len(first) == len(second) == MAX_LINKS
    assert min(link.bytes_sent for link in first) > max(link.bytes_sent for link in second)
    assert third == ()


async def test_the_learner_is_told_as_soon_as_something_begins_to_move(
    autojump_clock: MockClock,
) -> None:
    traffic, told = Traffic(), []
    links = LinkReporter(traffic, dials=dict, on_change=lambda: told.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(links.run)
        await trio.sleep(10)
        traffic.add_received(A, 1)
        began_s = trio.current_time()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    assert len(told) == 2
    assert told[0] - began_s <= TICK_S
    assert told[1] - began_s <= 4 * TICK_S


def look(cap: OwnCap, now_s: float, measured: float | None, sending_s: float) -> None:
    cap.look(now_s, measured_bytes_per_s=measured, sending_s=sending_s)


async def test_a_share_of_the_line_is_left_once_enough_was_sent_to_know_it(
    autojump_clock: MockClock,
) -> None:
    budget = UploadBudget()
    cap, caps = OwnCap(budget), []
    for now_s, measured, sending_s in (
        (1.0, None, 0.0),
        (2.0, 1e5, 0.0),  # by the probe
        (30.0, 1e6, MEASURE_SENDING_S - 1),
        (40.0, 9e5, MEASURE_SENDING_S),
        (50.0, 2e6, MEASURE_SENDING_S + 10),
    ):
        look(cap, now_s, measured, sending_s)
        caps.append(budget.bytes_per_s)

    assert caps == [None, None, None, 0.8e6, 0.8e6]


async def test_a_cap_that_holds_senders_up_is_lifted_now_and_then_to_measure_again(
    autojump_clock: MockClock,
) -> None:
    budget = UploadBudget()
    cap, caps = OwnCap(budget), []

    def look_at(now_s: float, measured: float, sending_s: float) -> None:
        look(cap, now_s, measured, sending_s)
        caps.append(budget.bytes_per_s)

    look_at(100.0, 1e6, MEASURE_SENDING_S)
    look_at(100.0 + CAPPED_S, 1e6, 500.0)  # nobody had to wait
    while budget.waited_s < MAX_WAITED_S:
        await budget.wait(800_000)
    look_at(100.0 + CAPPED_S - 1, 1e6, 500.0)
    look_at(100.0 + CAPPED_S, 1e6, 500.0)
    look_at(800.0, 3e6, 510.0)
    look_at(820.0, 2.9e6, 500.0 + MEASURE_SENDING_S)

    assert caps == [0.8e6, 0.8e6, 0.8e6, None, None, 0.8 * 3e6]


async def test_what_the_contributor_says_is_not_changed_by_measurements(
    autojump_clock: MockClock,
) -> None:
    budget = UploadBudget(5e5)
    look(OwnCap(budget), 100.0, 1e7, 1000.0)

    assert budget.bytes_per_s == 5e5
