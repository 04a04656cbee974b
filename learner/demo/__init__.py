"""The demo: a learner and three nodes on this machine, from nothing to a report."""
