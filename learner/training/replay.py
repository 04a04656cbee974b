"""Makes the updates again that a crash undid, from what the ledger recorded of them."""

from collections.abc import Sequence

import structlog

from echo2swarm.scheduling.leases.batcher import TrainingBatch
from learner.training.ports import Trainer
from learner.training.training_loop import to_train

log = structlog.get_logger()


async def replay(trainer: Trainer, updates: Sequence[TrainingBatch]) -> None:
    """Make ``updates`` in their order."""
    for batch in updates:
        updated = await trainer.update(batch.step, to_train(batch.groups))
        log.info("training.replayed", step=updated.step)
