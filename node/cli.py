"""``echo2-node``: contribute a machine to a swarm.

Nothing heavy is imported before ``--help`` has answered, and torch never in this process.
"""

import click

from echo2swarm.text.cli_errors import error_boundary, run_cli
from echo2swarm.text.cli_options import takes
from node.cli_machine import doctor, service
from node.control.cli import change, drain, pause, resume, status
from node.join_options import JoinOptions


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="echo2swarm")
def node() -> None:
    """Contribute this machine to the training of a language model."""


@node.command(short_help="Join the run that TICKET admits to.")
@takes(JoinOptions)
@click.pass_obj
def join(rim: error_boundary | None, options: JoinOptions) -> None:
    """Join the run that TICKET admits to ("-" reads it from standard input).

    Runs until the run is over. The first Ctrl-C finishes or hands back what is in hand, the
    second stops at once.
    """
    from echo2swarm.system.logging import configure_logging  # noqa: PLC0415
    from node.app import join_run  # noqa: PLC0415
    from node.options import join_config  # noqa: PLC0415
    from node.status_line import status_line  # noqa: PLC0415

    is_json = options.log_format == "json"
    config = join_config(options)
    if rim is not None:
        rim.verbose = options.verbose
        rim.crash_folder = config.state_dir
    line = None if is_json else status_line()
    configure_logging(verbose=options.verbose, as_json=is_json, stream=line)
    join_run(config, line=line)


for command in (status, pause, resume, drain, change, doctor, service):
    node.add_command(command)


def main() -> None:
    """Run the command line; ends the process."""
    run_cli(node, program="echo2-node")


if __name__ == "__main__":
    main()
