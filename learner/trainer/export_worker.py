"""The process that exports: ``python -m learner.trainer.export_worker``."""

from echo2swarm.processes.worker import OnProgress, serve
from learner.export.messages import Export, Exported
from learner.trainer.environment import prepare


def handle(call: Export, on_progress: OnProgress) -> Exported:
    """Do it."""
    # Libraries read the environment when they are imported.
    from learner.trainer.exporting import export  # noqa: PLC0415

    return export(call, on_progress)


def main() -> None:
    """Serve the command until it is gone."""
    prepare()
    serve(Export, handle)


if __name__ == "__main__":
    main()
