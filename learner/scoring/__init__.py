"""The scorer: a child process that runs the task, its tokenizer and its verifier."""
