"""A whole swarm on virtual time, in one process and without a GPU.

What decides is the code that runs live: dispatch, batches, freshness, the selector and the
capacity model. What is simulated is what they decide about: nodes, links, prices and luck.
"""
