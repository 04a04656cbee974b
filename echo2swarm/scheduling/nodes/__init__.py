"""What a learner knows of each node, and what it makes of it. Pure."""
