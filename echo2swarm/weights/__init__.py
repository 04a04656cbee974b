"""Weights on their way: published, stored, passed from peer to peer, and held.

======================================  ==================================================
:mod:`~echo2swarm.weights.store.store`        payloads on disk, chunk by chunk
:mod:`~echo2swarm.weights.store.library`      which versions are held, kept, and pinned by readers
:mod:`~echo2swarm.weights.publish`      a snapshot becomes a signed version (learner)
:mod:`~echo2swarm.weights.delta.offered`       deltas to a version, for who holds older ones
:mod:`~echo2swarm.weights.announce`     manifests told, and given on demand
:mod:`~echo2swarm.weights.transfer.serve`        chunks to whoever asks
:mod:`~echo2swarm.weights.transfer.fetch`        a payload from all who hold parts of it
:mod:`~echo2swarm.weights.delta.apply`      whole weights out of older ones and a delta
:mod:`~echo2swarm.weights.update_plan`      by which way a version arrives soonest
:mod:`~echo2swarm.weights.update`       one version, by that way (node)
:mod:`~echo2swarm.weights.sync`         newest version wanted, until it is held (node)
:mod:`~echo2swarm.weights.transfer.traffic`      bytes moved, by whom
======================================  ==================================================

Callers know versions, folders and payload references. How bytes travel (who
asks whom for which chunk) is inside fetch and serve, and what a payload means
(a full snapshot, a delta) is inside publish and sync.
"""
