"""Model folders: finding, checking, fetching and making them.

A *model folder* is a directory in Hugging Face format whose weights are
safetensors. Code from a model's repository is never run, and pickled weights
are never read.
"""
