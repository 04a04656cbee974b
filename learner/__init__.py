"""The application behind ``echo2-learner``: one learner that post-trains a model in a swarm."""
