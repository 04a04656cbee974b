"""The trainer: a child process that owns the model, the optimizer and their state."""
