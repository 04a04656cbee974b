"""The life of a node: the table, and what holds over all lives."""

import typing
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import LocalProtocolError
from protocols.heartbeat import NodeState
from protocols.ids import PolicyVersion
from protocols.lifecycle import (
    NEXT_STATE,
    Activate,
    Announce,
    Deactivate,
    Drained,
    DrainWork,
    Effect,
    EngineDied,
    Event,
    HandBackWork,
    LearnerFound,
    LearnerLost,
    Leave,
    NodeLifecycle,
    OwnerPaused,
    OwnerResumed,
    PauseWork,
    PolicyApplied,
    RunFinished,
    StopRequested,
    StopTakingWork,
    TakeWork,
)

V0, V1 = PolicyVersion(0), PolicyVersion(1)

events = st.one_of(
    st.sampled_from(
        [
            LearnerFound(),
            LearnerLost(),
            EngineDied("it"),
            Activate(),
            Deactivate(),
            OwnerPaused(),
            OwnerResumed(),
            StopRequested(),
            Drained(),
            RunFinished(),
        ]
    ),
    st.builds(PolicyApplied, st.integers(0, 3).map(PolicyVersion)),
)


def after(*happened: Event) -> NodeLifecycle:
    life = NodeLifecycle()
    for event in happened:
        life.handle(event)
    return life


def test_a_node_joins_syncs_stands_by_and_works() -> None:
    life = NodeLifecycle()
    assert life.state is NodeState.JOINING
    assert life.handle(LearnerFound()) == [Announce(NodeState.SYNCING)]
    assert life.handle(PolicyApplied(V0)) == [Announce(NodeState.STANDBY)]
    assert life.handle(Activate()) == [Announce(NodeState.ACTIVE), TakeWork()]
    assert life.handle(PolicyApplied(V1)) == []
    assert life.handle(Deactivate()) == [StopTakingWork(), Announce(NodeState.STANDBY)]


def test_a_policy_from_an_earlier_start_needs_no_syncing() -> None:
    life = after(PolicyApplied(V0))

    assert life.state is NodeState.JOINING
    assert life.handle(LearnerFound()) == [Announce(NodeState.STANDBY)]


def test_an_active_node_that_loses_the_learner_takes_no_work_and_comes_back() -> None:
    life = after(LearnerFound(), PolicyApplied(V0), Activate())

    assert life.handle(LearnerLost()) == [StopTakingWork(), Announce(NodeState.JOINING)]
    assert life.handle(LearnerFound()) == [Announce(NodeState.STANDBY)]
    assert life.handle(Activate()) == [Announce(NodeState.ACTIVE), TakeWork()]


def test_when_the_engine_dies_its_work_goes_back_and_the_node_stays() -> None:
    life = after(LearnerFound(), PolicyApplied(V1), Activate())

    assert life.handle(EngineDied("killed")) == [
        HandBackWork("killed"),
        StopTakingWork(),
        Announce(NodeState.SYNCING),
    ]
    assert life.handle(Activate()) == []
    assert life.handle(PolicyApplied(V0)) == [Announce(NodeState.STANDBY)]


def test_a_stopped_node_drains_and_then_leaves() -> None:
    life = after(LearnerFound(), PolicyApplied(V0), Activate())

    assert life.handle(StopRequested()) == [Announce(NodeState.DRAINING), DrainWork()]
    assert life.handle(StopRequested()) == []
    assert life.handle(Activate()) == []
    assert life.handle(Drained()) == [Announce(NodeState.LEFT), Leave(is_run_finished=False)]


def test_a_node_whose_engine_dies_while_draining_gives_its_work_back() -> None:
    life = after(LearnerFound(), PolicyApplied(V0), Activate(), StopRequested())

    assert life.handle(EngineDied("killed")) == [HandBackWork("killed")]
    assert life.state is NodeState.DRAINING


def test_a_node_leaves_when_the_run_is_finished() -> None:
    life = after(LearnerFound(), PolicyApplied(V0), Activate())

    assert life.handle(RunFinished()) == [Announce(NodeState.LEFT), Leave(is_run_finished=True)]


def test_a_paused_node_takes_no_work_whatever_the_learner_says_until_it_is_resumed() -> None:
    life = after(LearnerFound(), PolicyApplied(V0), Activate())

    assert life.handle(OwnerPaused()) == [PauseWork(), Announce(NodeState.PAUSED)]
    assert life.handle(Activate()) == []
    assert life.handle(PolicyApplied(V1)) == []
    assert life.handle(OwnerResumed()) == [Announce(NodeState.STANDBY)]
    assert life.handle(Activate()) == [Announce(NodeState.ACTIVE), TakeWork()]


def test_a_pause_ends_where_the_node_would_be_without_it() -> None:
    assert after(OwnerPaused(), OwnerResumed()).state is NodeState.JOINING
    assert after(OwnerPaused(), LearnerFound(), OwnerResumed()).state is NodeState.SYNCING
    gone = after(LearnerFound(), PolicyApplied(V0), OwnerPaused(), LearnerLost(), OwnerResumed())
    assert gone.state is NodeState.JOINING
    died = after(LearnerFound(), PolicyApplied(V0), OwnerPaused(), EngineDied("it"), OwnerResumed())
    assert died.state is NodeState.SYNCING


def test_a_paused_node_can_drain_and_the_run_can_end_without_it() -> None:
    life = after(LearnerFound(), PolicyApplied(V0), OwnerPaused())
    assert life.handle(StopRequested()) == [Announce(NodeState.DRAINING), DrainWork()]
    life = after(LearnerFound(), OwnerPaused())
    assert life.handle(RunFinished()) == [Announce(NodeState.LEFT), Leave(is_run_finished=True)]


@pytest.mark.parametrize("event", [Activate(), Deactivate(), RunFinished(), Drained()])
def test_no_directive_and_no_drained_before_a_learner_was_found(event: Event) -> None:
    with pytest.raises(LocalProtocolError, match="in state joining"):
        NodeLifecycle().handle(event)


def test_the_applied_version_never_goes_back_while_one_engine_lives() -> None:
    life = after(LearnerFound(), PolicyApplied(V1))

    with pytest.raises(LocalProtocolError, match="version 0 applied after 1"):
        life.handle(PolicyApplied(V0))
    assert life.applied_version == V1


def test_the_table_has_an_answer_for_every_state_and_event() -> None:
    assert set(NEXT_STATE) == {
        (state, event) for state in NodeState for event in typing.get_args(Event)
    }


@given(happened=st.lists(events, max_size=30))
def test_what_holds_in_every_life(happened: Sequence[Event]) -> None:
    life = NodeLifecycle()
    takes_work = False
    told = NodeState.JOINING
    num_left = 0
    is_stopping = False
    for event in happened:
        before = (life.state, life.applied_version)
        effects: list[Effect] = []
        try:
            effects = life.handle(event)
        except LocalProtocolError:
            assert (life.state, life.applied_version) == before
            continue
        for effect in effects:
            match effect:
                case TakeWork():
                    assert not is_stopping
                    takes_work = True
                case StopTakingWork():
                    assert takes_work
                    takes_work = False
                case DrainWork() | PauseWork():
                    takes_work = False
                case Announce(state):
                    told = state
                case Leave():
                    takes_work = False
                    num_left += 1
                case HandBackWork():
                    pass
        is_stopping = is_stopping or isinstance(event, StopRequested)
        # The learner knows the state; work is taken exactly while active, with a policy.
        assert told is life.state
        assert takes_work == (life.state is NodeState.ACTIVE)
        if life.state in {NodeState.STANDBY, NodeState.ACTIVE}:
            assert life.applied_version is not None
        if before[0] is NodeState.LEFT:
            assert life.state is NodeState.LEFT
            assert effects == []
        assert num_left == (life.state is NodeState.LEFT)
        if is_stopping:
            assert life.state in {NodeState.DRAINING, NodeState.LEFT}
