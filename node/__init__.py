"""The application behind ``echo2-node``: a contributed machine that makes rollouts."""
