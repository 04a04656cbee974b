"""Options that are declared once, as fields."""

from dataclasses import dataclass

import click
from click.testing import CliRunner

from echo2swarm.text.cli_options import argument, option, takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    target: str = argument()
    label: str | None = option("--label")
    num: int = option("--count", type=click.IntRange(1), default=3, help="How many.")
    tags: tuple[str, ...] = option("--tag", multiple=True)
    is_quick: bool = option("--quick", is_flag=True)


def settings_of(*arguments: str) -> Settings:
    taken: list[Settings] = []

    @click.command()
    @takes(Settings)
    @click.pass_obj
    def command(taken: list[Settings], settings: Settings) -> None:
        """Take the settings."""
        taken.append(settings)

    told = CliRunner().invoke(command, arguments, obj=taken, standalone_mode=False)
    if told.exception is not None:
        raise told.exception
    return taken[0]


def test_an_option_has_the_same_default_on_the_command_line_and_in_code() -> None:
    assert settings_of("here") == Settings(target="here")
    assert Settings(target="here").num == 3
    assert Settings(target="here").tags == ()
    assert Settings(target="here").is_quick is False
    assert Settings(target="here").label is None


def test_a_command_gets_what_was_typed_as_one_value() -> None:
    typed = settings_of("x", "--count", "2", "--tag", "a", "--tag", "b", "--quick", "--label", "l")

    assert typed == Settings(target="x", num=2, tags=("a", "b"), is_quick=True, label="l")


def test_the_options_are_listed_in_the_order_of_their_fields() -> None:
    command = click.command()(takes(Settings)(lambda settings: None))

    assert [each.name for each in command.params] == ["target", "label", "num", "tags", "is_quick"]
