"""The process that exports: ``python -m learner.trainer.export_worker``."""

from echo2swarm.processes.worker import OnProgress, serve_parent
from learner.export.messages import Export, Exported
from learner.trainer.environment import prepare


def handle_export(call: Export, on_progress: OnProgress) -> Exported:
    """Do it."""
    # Libraries read the environment when they are imported.
    from learner.trainer.exporting import write_model_folder  # noqa: PLC0415

    return write_model_folder(call, on_progress)


def main() -> None:
    """Serve the command until it is gone."""
    prepare()
    serve_parent(Export, handle_export)


if __name__ == "__main__":
    main()
