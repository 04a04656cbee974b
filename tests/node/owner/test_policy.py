"""Whether the node works: who comes before whom, and who else uses the GPU."""

from dataclasses import replace
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from node.owner.gpu import GpuUse, others_in
from node.owner.hours import parse_hours
from node.owner.policy import (
    GPU_QUIET_S,
    DrainAction,
    GpuWatch,
    OwnerAction,
    OwnerFacts,
    PauseAction,
    RunAction,
    decide,
)

NOON = datetime(2026, 6, 1, 12, 0)
FACTS = OwnerFacts(now_s=100.0, local=NOON)
GAME = GpuUse(pid=7, name="game", memory_bytes=3 * 10**9)
DESKTOP = GpuUse(pid=8, name="Xorg", memory_bytes=200 * 10**6, time_share=0.02)


def test_a_node_works_when_nothing_speaks_against_it() -> None:
    assert decide(FACTS) == RunAction()


def test_each_reason_to_pause_is_said() -> None:
    assert decide(replace(FACTS, order=OwnerAction(why="gaming"))) == PauseAction(
        "paused by its owner: gaming"
    )
    assert decide(replace(FACTS, order=OwnerAction())) == PauseAction("paused by its owner")
    assert decide(replace(FACTS, hours=parse_hours("22:00-07:00"))) == PauseAction(
        "outside its hours, 22:00-07:00"
    )
    assert decide(replace(FACTS, gpu_busy="game uses the GPU")) == PauseAction("game uses the GPU")


def test_an_ordered_pause_ends_at_its_time_and_not_before() -> None:
    facts = replace(FACTS, order=OwnerAction(until_s=200.0))

    assert isinstance(decide(replace(facts, now_s=199.9)), PauseAction)
    assert decide(replace(facts, now_s=200.0)) == RunAction()


def test_who_leaves_leaves_whatever_else_there_is() -> None:
    assert (
        decide(replace(FACTS, is_leaving=True, order=OwnerAction(), gpu_busy="x")) == DrainAction()
    )


def test_the_end_of_an_order_does_not_end_other_pauses() -> None:
    facts = replace(FACTS, order=OwnerAction(until_s=50.0), gpu_busy="game uses the GPU")

    assert decide(facts) == PauseAction("game uses the GPU")


def test_a_game_pauses_at_once_and_for_a_while_after() -> None:
    watch = GpuWatch()

    assert "game" in watch.look((GAME, DESKTOP), 0.0)
    assert watch.look((DESKTOP,), GPU_QUIET_S - 1)
    assert not watch.look((DESKTOP,), GPU_QUIET_S)


def test_a_desktop_is_no_reason_to_pause() -> None:
    assert not GpuWatch().look((DESKTOP,), 0.0)
    assert not GpuWatch().look((), 0.0)


def test_much_time_with_little_memory_is_a_reason() -> None:
    busy = GpuUse(pid=9, name="blender", memory_bytes=10**8, time_share=0.9)

    assert "blender" in GpuWatch().look((busy, DESKTOP), 0.0)


def test_what_the_node_started_is_none_of_the_others() -> None:
    parents = {30: 20, 20: 10, 10: 1, 40: 1}
    uses = tuple(GpuUse(pid=pid, name="x", memory_bytes=1) for pid in (10, 30, 40, 50))

    others = others_in(uses, own_pid=10, parent_of=parents.get)

    assert [use.pid for use in others] == [40, 50]


def test_a_loop_of_parents_ends() -> None:
    uses = (GpuUse(pid=2, name="x", memory_bytes=1),)

    assert others_in(uses, own_pid=10, parent_of={2: 3, 3: 2}.get) == uses


@given(
    now_s=st.floats(0, 1e6),
    until_s=st.floats(0, 1e6),
    hour=st.integers(0, 23),
    busy=st.sampled_from(["", "game"]),
    is_leaving=st.booleans(),
)
def test_a_pause_always_has_a_reason(
    now_s: float, until_s: float, hour: int, busy: str, is_leaving: bool
) -> None:
    decision = decide(
        OwnerFacts(
            now_s=now_s,
            local=NOON.replace(hour=hour),
            hours=parse_hours("22:00-07:00"),
            order=OwnerAction(until_s=until_s),
            gpu_busy=busy,
            is_leaving=is_leaving,
        )
    )

    assert not isinstance(decision, PauseAction) or decision.why
