"""What the operating system gives: files, logs, errors, devices, identity, change events."""
