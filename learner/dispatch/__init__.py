"""Dispatch: who samples what, until when, and what became of it."""
