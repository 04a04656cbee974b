"""The card of an exported model: what it is, and where it comes from."""

import json
from pathlib import Path

from learner.export.source import CheckpointSource


def model_card(trained: CheckpointSource, *, dtype: str, version: str, unix_day: str) -> str:
    """Return the text of ``README.md``.

    Args:
        trained: what was exported.
        dtype: of its weights.
        version: of this software.
        unix_day: the date of the export.
    """
    run, step = trained.run, trained.checkpoint.step
    config, run_dir = run.config, run.run_dir
    base = _public_name(config.model.path)
    rows = {
        "run": run_dir.run_id,
        "step": f"{step} of {config.run.num_steps}",
        "model trained": base,
        "task": config.task.get("kind", "?"),
        "SHA-256 of the run's config.toml": run.config_sha256,
        "data type": dtype,
        "exported": f"{unix_day}, echo2swarm {version}",
    }
    if run_dir.forked_from is not None:
        origin = run_dir.forked_from
        rows["forked from"] = f"run {origin.run_id}, step {origin.step}"
    table = "\n".join(f"| {name} | {_cell(str(value))} |" for name, value in rows.items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
base_model: {json.dumps(base)}
tags: [reinforcement-learning, echo2swarm]
---

# {run_dir.run_id}, step {step}

Post-trained by reinforcement learning, with rollouts made by a swarm of nodes.

| | |
|---|---|
{table}
"""


def _public_name(model_path: str) -> str:
    """Return a hub id, or the name of a folder: where that is concerns nobody, and helps nobody."""
    path = Path(model_path)
    return path.name if path.is_absolute() else model_path


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
