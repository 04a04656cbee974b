"""Intake: what comes back from nodes is checked, scored, and recorded."""
