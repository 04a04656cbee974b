"""Payloads on disk: content-addressed, verified, retained and pinned."""
