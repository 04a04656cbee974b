"""The network port and its adapters: real libp2p, and an in-memory one for tests."""
