"""What the learner knows while it runs: progress, nodes and links."""
