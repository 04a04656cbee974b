"""Nodes as the learner knows them: who takes part, how fast, and who is to work."""
