"""What holds for the options of every command."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from echo2swarm.cli import swarm
from learner.cli import learner
from node.cli import node
from node.cli_machine import service

PROGRAMS = [swarm, learner, node]


def options(command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from options(inner)
    for option in command.params:
        yield f"{command.name} {option.name}", option


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.name))
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_no_option_takes_what_is_no_number_for_one(program: click.Command, value: str) -> None:
    numbers = [
        (where, option)
        for where, option in options(program)
        if isinstance(option.type, click.types.FloatParamType)
    ]
    assert numbers
    for where, option in numbers:
        with pytest.raises(click.BadParameter):
            pytest.fail(f"{where}: {option.type.convert(value, option, None)}")


@pytest.mark.parametrize("program", [*PROGRAMS, service], ids=lambda group: str(group.name))
def test_what_commands_are_for_is_said_in_whole_sentences(program: click.Group) -> None:
    told = CliRunner().invoke(program, ["--help"], terminal_width=80, max_content_width=80).output
    _, _, commands = told.partition("Commands:")

    assert commands.count("\n") > len(program.commands)
    assert "..." not in commands
