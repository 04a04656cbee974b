"""What the owner types with ``set``."""

import click
import pytest

from echo2swarm.system.errors import UsageError
from node.cli import node
from node.owner.hours import parse_hours
from node.owner.settings import BOUNDS, OwnerSettings, change_settings, describe_settings

SET = OwnerSettings(
    upload_bytes_per_s=625_000.0,
    download_bytes_per_s=12_500_000.0,
    hours=parse_hours("22:00-07:00"),
    pause_on_gpu_use=True,
    relay_while_paused=True,
    power_watts=200.0,
    disk_bytes=50_000_000_000,
)


def test_what_is_set_can_be_set_as_it_is_shown() -> None:
    assert change_settings(OwnerSettings(), describe_settings(SET)) == SET
    unset = {k: v for k, v in describe_settings(OwnerSettings()).items() if k != "power-watts"}
    assert change_settings(SET, unset) == OwnerSettings(power_watts=200.0)


def test_an_unknown_setting_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match='did you mean "upload-mbit"'):
        change_settings(SET, {"upload-mbits": "5"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upload-mbit", "-1"),
        ("upload-mbit", "nan"),
        ("download-mbit", "fast"),
        ("hours", "22-7"),
        ("pause-on-gpu-use", "maybe"),
        ("power-watts", "none"),
        ("disk-gb", "0"),
        ("disk-gb", "0.0001"),
        ("power-watts", "100000"),
    ],
)
def test_a_value_that_is_none_is_refused_and_nothing_changes(name: str, value: str) -> None:
    with pytest.raises(UsageError):
        change_settings(SET, {"relay-while-paused": "no", name: value})


def test_numbers_have_the_bounds_of_join_s_options() -> None:
    join = node.commands["join"]
    types = {param.opts[0].removeprefix("--"): param.type for param in join.params}

    for name, bounds in BOUNDS.items():
        kind = types[name]
        assert isinstance(kind, click.FloatRange)
        assert (kind.min, kind.max) == bounds
        for bound in bounds:
            assert change_settings(SET, {name: str(bound)}) is not None, "both of them included"
