"""The run directory: its lock, model, checkpoints and restarts."""
