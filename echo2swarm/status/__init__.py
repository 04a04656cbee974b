"""`swarm status`: ask a learner for its status, and show it."""
