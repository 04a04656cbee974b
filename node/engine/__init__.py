"""Rollout engines: what turns prompts into completions, in a child process."""
