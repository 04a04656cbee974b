"""``echo2-learner eval``: how well a model does the run's task, on held-out prompts."""
