"""Bulk transfer: weights over a TLS channel of its own, negotiated over libp2p, on the same port."""
