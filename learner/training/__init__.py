"""The training loop: batch, update, weights, checkpoint; and the way back after a crash."""
