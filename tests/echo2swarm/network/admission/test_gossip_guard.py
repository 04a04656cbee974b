"""Who keeps bringing gossip that is refused is not listened to for a while."""

from echo2swarm.network.admission.gossip_guard import MAX_FAULTS, SHUT_OUT_S, GossipGuard
from protocols.ids import PeerId

A, B = PeerId("a"), PeerId("b")


def test_a_few_faults_are_forgiven_and_many_are_not() -> None:
    guard = GossipGuard()
    assert not any(guard.fault(A, float(i)) for i in range(MAX_FAULTS))
    assert guard.admit(A, 8.0)

    told = [guard.fault(A, 8.0), guard.fault(A, 8.1)]

    assert told == [True, False]
    assert not guard.admit(A, 9.0)
    assert guard.admit(B, 9.0)
    assert not guard.admit(A, 8.0 + SHUT_OUT_S - 1)
    assert guard.admit(A, 8.0 + SHUT_OUT_S)


def test_faults_now_and_then_shut_nobody_out() -> None:
    guard = GossipGuard()

    assert not any(guard.fault(A, 11.0 * i) for i in range(1000))


def test_a_neighbour_has_only_so_many_messages_looked_at() -> None:
    guard = GossipGuard()
    num_admitted = sum(guard.admit(A, 0.0) for _ in range(2000))

    assert num_admitted == 600
    assert guard.admit(B, 0.0)
    assert guard.admit(A, 1.0)


def test_what_is_remembered_is_bounded() -> None:
    guard = GossipGuard()
    for i in range(2000):
        for _ in range(MAX_FAULTS + 1):
            guard.fault(PeerId(f"peer-{i}"), 0.0)

    assert not guard.is_shut_out(PeerId("peer-0"), 1.0)
    assert guard.is_shut_out(PeerId("peer-1999"), 1.0)
