"""What strangers can do to a run, measured: ``python -m benchmarks.attacks``.

======================  =============================================================
:mod:`.registry`        the attacks, and how hard each is made
:mod:`.kinds`           what each does, a module each
:mod:`.attacker`        the process in which one of them is made
:mod:`.scene`           what it is given; identities, addresses, pace
:mod:`.wire`            a connection of which every byte is up to the attack
:mod:`.member`          an identity that speaks a node's messages
:mod:`.lab`             a learner, two honest nodes, and what is read off them
:mod:`.newcomer`        an honest stranger who wants in, again and again
:mod:`.verdict`         from what was read to figures and marks
======================  =============================================================

All traffic stays on loopback, and all of it is bounded in number and in time.
"""
