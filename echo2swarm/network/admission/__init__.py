"""Who and what is admitted, without I/O: connections, streams, dials, gossip, providers."""
