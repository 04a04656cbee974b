"""What may change at a resume."""

import msgspec
import pytest

from echo2swarm.system.errors import ConfigError
from learner.config import LearnerConfig, ModelConfig, RolloutConfig, TrainerConfig
from learner.config.changes import Weight, changes, check_resumable


def replaced(**tables: object) -> LearnerConfig:
    return msgspec.structs.replace(LearnerConfig(), **tables)


def test_the_same_configuration_has_no_changes() -> None:
    assert changes(LearnerConfig(), LearnerConfig()) == ()


@pytest.mark.parametrize(
    ("now", "key", "weight"),
    [
        (replaced(rollouts=RolloutConfig(max_staleness=5)), "rollouts.max_staleness", Weight.FREE),
        (replaced(rollouts=RolloutConfig(group_size=4)), "rollouts.group_size", Weight.RUN),
        (replaced(model=ModelConfig(path="/other")), "model.path", Weight.RUN),
        (replaced(task={"kind": "sort_digits"}), "task.kind", Weight.RUN),
        (replaced(trainer=TrainerConfig(threads=2)), "trainer.threads", Weight.FREE),
        (replaced(trainer=TrainerConfig(beta1=0.5)), "trainer.beta1", Weight.UPDATES),
    ],
)
def test_each_change_is_weighed(now: LearnerConfig, key: str, weight: Weight) -> None:
    (change,) = changes(LearnerConfig(), now)

    assert (change.key, change.weight) == (key, weight)


def test_what_makes_another_run_is_refused_with_each_key_and_a_way_out() -> None:
    found = changes(
        LearnerConfig(),
        replaced(
            rollouts=RolloutConfig(group_size=4, temperature=0.7), model=ModelConfig(path="/x")
        ),
    )

    with pytest.raises(ConfigError) as caught:
        check_resumable(found, num_updates_to_replay=0, folder="runs/run")

    for part in ("model.path", "rollouts.group_size from 8 to 4", "echo2-learner fork runs/run"):
        assert part in str(caught.value)


def test_updates_that_are_made_again_are_made_as_before() -> None:
    found = changes(LearnerConfig(), replaced(trainer=TrainerConfig(learning_rate=1e-5)))

    check_resumable(found, num_updates_to_replay=0, folder="runs/run")
    with pytest.raises(ConfigError, match=r"trainer\.learning_rate: 3 updates .* Ctrl-C"):
        check_resumable(found, num_updates_to_replay=3, folder="runs/run")
