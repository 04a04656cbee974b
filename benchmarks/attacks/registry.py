"""The attacks, and how hard each is made."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.attacks.kinds import (
    adverts,
    call_back,
    connections,
    fill,
    gossip_flood,
    handshakes,
    log_flood,
    providers,
    silent_streams,
    slow_scoring,
    status_flood,
    unnegotiated,
    window,
)
from benchmarks.attacks.scene import Scene

FULL_S: Final = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One way to be a nuisance."""

    name: str
    what: str
    """In a few words, for the table."""
    run: Callable[[Scene], Awaitable[None]]
    """Goes on until it is cancelled."""
    per_s: float = 0.0
    """Deeds planned each second; 0 where identities do what they can."""
    min_tried: int = 1
    """Without so many deeds in ``seconds`` the attack was not made, and nothing is shown by it."""
    num_identities: int = 60
    sources: Literal["one", "many", "mixed"] = "mixed"
    seconds: float = FULL_S
    task: Literal["sort_digits", "math"] = "sort_digits"
    has_victim: bool = False
    """Whether somebody who has nothing to do with the run counts who connects."""
    is_quick: bool = False
    """Whether ``--quick`` makes it, too."""


def _silent(protocol: str) -> Attack:
    return Attack(
        name=f"silent-{protocol}",
        what=f"8 silent streams of {protocol} from each of 60 identities",
        run=silent_streams.on(protocol),
        min_tried=100,
        seconds=16.0,
    )


ATTACKS: Final = (
    Attack(
        name="handshakes",
        what="3,600 connections that end in their handshake",
        run=handshakes.run,
        per_s=150.0,
        min_tried=2000,
    ),
    Attack(
        name="tarpit",
        what="60 members whose 240 addresses are silent",
        run=adverts.at_tarpit,
        min_tried=200,
        seconds=40.0,
    ),
    _silent("rollouts"),
    _silent("heartbeat"),
    _silent("lease"),
    _silent("manifest"),
    _silent("chunks"),
    Attack(
        name="silent-all",
        what="8 silent streams of each of seven protocols from each of 60 identities",
        run=silent_streams.on_all,
        min_tried=200,
    ),
    Attack(
        name="call-back",
        what="requests to dial a victim, 100 each second",
        run=call_back.run,
        per_s=100.0,
        min_tried=100,
        num_identities=12,
        has_victim=True,
        is_quick=True,
    ),
    Attack(
        name="providers",
        what="60 identities that the DHT finds at a victim's",
        run=providers.run,
        min_tried=200,
        seconds=50.0,
        has_victim=True,
    ),
    Attack(
        name="adverts",
        what="60 members who say that they live at a victim's",
        run=adverts.at_victim,
        min_tried=200,
        seconds=40.0,
        has_victim=True,
    ),
    Attack(
        name="connections-one",
        what="640 idle connections from one address",
        run=connections.run,
        num_identities=640,
        min_tried=640,
        sources="one",
    ),
    Attack(
        name="connections-many",
        what="640 idle connections from 60 addresses",
        run=connections.run,
        num_identities=640,
        min_tried=640,
        sources="many",
    ),
    Attack(
        name="window",
        what="6 connections that send 120 MB each beyond their windows",
        run=window.run,
        num_identities=6,
        min_tried=50,
    ),
    Attack(
        name="unnegotiated",
        what="6 connections with 3,000 streams each that say nothing",
        run=unnegotiated.run,
        per_s=1000.0,
        num_identities=6,
        min_tried=300,
    ),
    Attack(
        name="log-flood",
        what="messages that ask for a line in a log, 200 each second",
        run=log_flood.run,
        per_s=200.0,
        min_tried=500,
        seconds=60.0,
    ),
    Attack(
        name="status-flood",
        what="requests for the status, 200 each second",
        run=status_flood.run,
        per_s=200.0,
        min_tried=500,
    ),
    Attack(
        name="gossip",
        what="forged manifests of 300 kB, 10 each second",
        run=gossip_flood.run,
        per_s=10.0,
        num_identities=12,
        min_tried=50,
        is_quick=True,
    ),
    Attack(
        name="fill",
        what="80 new identities each second that report once",
        run=fill.run,
        per_s=80.0,
        num_identities=0,
        min_tried=1000,
        seconds=50.0,
    ),
    Attack(
        name="slow-scoring",
        what="4 members whose completions take long to score",
        run=slow_scoring.run,
        num_identities=4,
        min_tried=4,
        seconds=40.0,
        task="math",
    ),
)


def attack_of(name: str) -> Attack:
    """Return the attack of this name.

    Raises:
        KeyError: there is none.
    """
    return {attack.name: attack for attack in ATTACKS}[name]
