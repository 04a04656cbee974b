"""Engines against the libraries they are made of, on the same prompts in one run."""
