"""Lossless differences between two versions of the weights; codec ``xor-1``.

Specification: ``docs/specs/deltas.md``. Everything here is blocking, for worker
threads, and works a block at a time: memory does not grow with the model.

====================================  ==================================================
:mod:`~echo2swarm.weights.delta.blocks`      what changed in one block, as bytes and back
:mod:`~echo2swarm.weights.delta.sections`    compressed byte strings whose length is known before
:mod:`~echo2swarm.weights.delta.stream`      a delta file: header, and one record per block
:mod:`~echo2swarm.weights.delta.content`     files one after the other, read and written as one
:mod:`~echo2swarm.weights.delta.compute`     diff, merge and patch of whole versions
:mod:`~echo2swarm.weights.delta.element_size`       how wide a number is in these weights
====================================  ==================================================
"""
