"""What the simulated lease desk asks of the dispatcher."""

import pytest

from echo2swarm.scheduling.leases.dispatcher import Dispatcher
from echo2swarm.scheduling.leases.lease_rules import NoWork, WorkRequest
from echo2swarm.simulate.swarm import simulate_swarm
from protocols.leases import Lease
from tests.echo2swarm.simulate.samples import scenario


def test_the_dispatcher_hears_of_slow_and_of_usual_broadcasts_as_at_a_live_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[tuple[float | None, float | None]] = []
    grant = Dispatcher.grant

    def note(self: Dispatcher, ask: WorkRequest, now_s: float) -> Lease | NoWork:
        heard.append((ask.broadcast_s, ask.usual_broadcast_s))
        return grant(self, ask, now_s)

    monkeypatch.setattr(Dispatcher, "grant", note)
    simulate_swarm(scenario(broadcast={"fixed_s": 4.0, "spread": 0.9}))

    assert heard[0] == (None, None)
    known = [(slow, usual) for slow, usual in heard if slow is not None and usual is not None]
    assert known
    assert all(usual <= slow for slow, usual in known)
    assert any(usual < slow for slow, usual in known)
