"""Bulk transfer: weights over a TLS channel of their own, negotiated over libp2p, on one port."""
