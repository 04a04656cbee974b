"""``echo2-learner export``: a run's weights as a plain folder in Hugging Face format."""
