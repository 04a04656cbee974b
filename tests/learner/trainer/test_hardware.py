"""What the trainer computes on."""

import pytest
import torch

from echo2swarm.system.errors import ConfigError
from learner.trainer.hardware import device_of

pytestmark = pytest.mark.model


def test_whatever_there_is_is_taken_by_default() -> None:
    assert device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device_of("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "nonsense"])
def test_a_device_that_is_not_here_is_named_with_what_is(name: str) -> None:
    with pytest.raises(ConfigError, match=rf'trainer.device = "{name}": .*can use .*"auto" takes'):
        device_of(name)
