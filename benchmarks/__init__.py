"""What is measured: run with ``python -m benchmarks.NAME``; times are never asserted in tests."""
