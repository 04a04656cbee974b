"""The libp2p adapter of the network port; the only package that imports libp2p."""
