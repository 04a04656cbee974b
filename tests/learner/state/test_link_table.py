"""Heartbeats in, links out: what is measured, who is paired, who is shut out."""

import random

import pytest

from echo2swarm.weights.overlay.bans import BAN_S
from echo2swarm.weights.overlay.reachability import FAILED_S
from echo2swarm.weights.transfer.traffic import Traffic
from learner.state.link_table import SENDING_S, LinkTable
from protocols.advert import NodeAdvert
from protocols.heartbeat import Dial, Heartbeat, LinkReport, NodeState, PeerReport
from protocols.ids import PeerId
from protocols.reasons import Reason
from protocols.status import Reachability

LEARNER = PeerId("learner")
PEERS = tuple(PeerId(f"peer-{i}") for i in range(6))
A, B, C, D, E, F = PEERS


def advert(peer: PeerId, *, has_address: bool = True) -> NodeAdvert:
    addresses = (f"/ip4/10.0.0.1/tcp/1/p2p/{peer}",) if has_address else ()
    return NodeAdvert("run", peer, "node", 1, addresses, "name", "engine", "cpu", 1.0, "test")


def beat(*reports: LinkReport, receiving_s: float = 0.0) -> Heartbeat:
    return Heartbeat(
        "run",
        "session-1",
        b"",
        NodeState.ACTIVE,
        None,
        None,
        0,
        0,
        0,
        0,
        receiving_s=receiving_s,
        links=reports,
    )


class World:
    def __init__(self, *, max_upload: float | None = None) -> None:
        self.traffic = Traffic()
        self.links = LinkTable(
            LEARNER, self.traffic, random.Random(0), max_upload_bytes_per_s=max_upload
        )
        self.links.tick(0.0)
        for peer in PEERS:
            self.hear(peer, 0.0, is_start=True)

    def hear(
        self,
        peer: PeerId,
        now_s: float,
        *reports: LinkReport,
        receiving_s: float = 0.0,
        is_start: bool = False,
        has_address: bool = True,
    ) -> None:
        self.links.heard(
            peer,
            beat(*reports, receiving_s=receiving_s),
            advert(peer, has_address=has_address),
            now_s,
            is_start=is_start,
        )

    def broadcast(self) -> None:
        """Let the learner send to A at 2 MB/s, and A to B at 1 MB/s, for ten seconds."""
        for second in range(1, 11):
            self.traffic.add_sent(A, 2_000_000)
            self.links.tick(float(second))
            at_a = LinkReport(LEARNER, 0, second * 2_000_000, Dial.UNTRIED)
            to_b = LinkReport(B, second * 1_000_000, 0, Dial.UNTRIED)
            at_b = LinkReport(A, 0, second * 1_000_000, Dial.UNTRIED)
            self.hear(A, second + 0.1, at_a, to_b, receiving_s=float(second))
            self.hear(B, second + 0.1, at_b, receiving_s=float(second))


def test_the_learners_own_uplink_and_its_nodes_are_measured() -> None:
    world = World()
    world.broadcast()
    links = world.links

    assert links.own_upload_bytes_per_s == pytest.approx(2e6, rel=0.1)
    assert links.upload_bytes_per_s(A) == pytest.approx(1e6, rel=0.1)
    assert links.download_bytes_per_s(A) == pytest.approx(2e6, rel=0.1)
    assert links.download_bytes_per_s(B) == pytest.approx(1e6, rel=0.1)
    status = links.status(A, 11.0)
    assert status.upload_bytes_per_s == links.upload_bytes_per_s(A)
    assert status.num_neighbours == 5


def test_a_broadcast_is_expected_to_take_what_the_measured_links_need() -> None:
    world = World()
    assert world.links.expected_broadcast_s(10_000_000, PEERS) is None
    world.broadcast()

    # The slowest download decides; who was not measured counts as a typical one.
    assert world.links.expected_broadcast_s(10_000_000, (A, B)) == pytest.approx(10, rel=0.1)
    assert world.links.expected_broadcast_s(10_000_000, (A,)) == pytest.approx(5, rel=0.1)
    many = world.links.expected_broadcast_s(10_000_000, PEERS)
    assert many is not None
    assert many == pytest.approx(10, rel=0.1)
    assert world.links.expected_broadcast_s(10_000_000, ()) is None


def test_a_cap_on_the_learner_bounds_what_it_is_expected_to_send() -> None:
    world = World(max_upload=500_000.0)
    world.broadcast()

    assert world.links.own_upload_bytes_per_s == 500_000.0
    assert world.links.expected_broadcast_s(10_000_000, (A,)) == pytest.approx(20, rel=0.1)


def test_the_learner_counts_as_sending_until_a_moment_after_its_last_byte() -> None:
    world = World()
    assert not world.links.is_sending(0.5)
    world.traffic.add_sent(A, 1)
    assert world.links.is_sending(0.6)
    world.links.tick(1.0)

    assert world.links.is_sending(1.0 + SENDING_S - 0.1)
    assert not world.links.is_sending(1.0 + SENDING_S)


def test_pairs_are_symmetric_and_end_with_either() -> None:
    links = World().links
    assert all(set(links.neighbours_of(peer)) == {*PEERS} - {peer} for peer in PEERS)
    links.gone(A)

    assert links.neighbours_of(A) == ()
    assert A not in links.neighbours_of(B)


def test_a_node_that_nobody_can_dial_is_known_as_that_and_not_paired_with_its_like() -> None:
    world = World()
    for reporter in (C, D, E):
        world.hear(
            reporter,
            10.0,
            LinkReport(A, 0, 0, Dial.FAILED),
            LinkReport(B, 0, 0, Dial.FAILED),
            LinkReport(F, 0, 0, Dial.REACHED),
        )
    world.links.tick(11.0)
    assert world.links.status(A, 11.0).reachability is Reachability.UNKNOWN
    assert world.links.status(F, 11.0).reachability is Reachability.YES
    world.links.tick(10.0 + FAILED_S)

    assert world.links.status(A, 80.0).reachability is Reachability.NO
    assert B not in world.links.neighbours_of(A)
    assert F in world.links.neighbours_of(A)
    world.hear(A, 90.0, is_start=True)
    world.links.tick(91.0)
    assert world.links.status(A, 91.0).reachability is Reachability.UNKNOWN
    assert set(world.links.neighbours_of(A)) >= {C, D, E, F}


def test_a_node_without_an_address_is_not_reachable_from_the_start() -> None:
    world = World()
    for number in (7, 8):
        world.hear(PeerId(f"peer-{number}"), 1.0, is_start=True, has_address=False)
    world.links.tick(2.0)

    assert world.links.status(PeerId("peer-7"), 2.0).reachability is Reachability.NO
    assert set(world.links.neighbours_of(PeerId("peer-7"))) == {*PEERS}


def report_on(culprit: PeerId, reason: Reason = Reason.BAD_CHUNK_HASH) -> PeerReport:
    return PeerReport(culprit, reason, 1)


def test_three_reports_of_wrong_bytes_shut_a_node_out_for_an_hour_and_tell_it() -> None:
    world = World()
    for reporter in (B, C):
        world.links.reported(reporter, report_on(A), 5.0)
    world.links.reported(D, report_on(A, Reason.MALFORMED), 5.0)
    assert world.links.warning_of(A, 5.0) == ""
    world.links.reported(D, report_on(A), 5.0)

    assert world.links.neighbours_of(A) == ()
    assert all(A not in world.links.neighbours_of(peer) for peer in PEERS)
    assert "shut out" in world.links.warning_of(A, 5.0)
    assert world.links.dealing_bytes_per_s(A) == 1.0
    assert len(world.links.warning_of(A, 5.0)) <= 200
    world.hear(A, 6.0)
    assert world.links.neighbours_of(A) == ()
    world.links.tick(5.0 + BAN_S)
    world.hear(A, 6.0 + BAN_S)
    assert world.links.warning_of(A, 6.0 + BAN_S) == ""
    assert len(world.links.neighbours_of(A)) == 5


def test_what_a_probe_measured_is_known_and_a_node_that_is_forgotten_is_unknown() -> None:
    world = World()
    world.links.probed(A, 3e6, 9e6)
    assert (world.links.upload_bytes_per_s(A), world.links.download_bytes_per_s(A)) == (3e6, 9e6)
    world.links.gone(A)
    assert world.links.upload_bytes_per_s(A) == 3e6
    world.links.forget(A)

    assert world.links.upload_bytes_per_s(A) is None
