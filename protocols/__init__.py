"""The wire: messages, limits, signatures, and protocol cores without I/O.

Everything that two participants say to each other is defined here, one module
per protocol, each with a specification of the same name in ``docs/specs/``.

=====================  =============================  ==========================
protocol id or form    module                         who asks whom
=====================  =============================  ==========================
``echo2-1:...`` text   :mod:`protocols.ticket`        owner to contributor
gossip topic           :mod:`protocols.manifest`      learner to everybody
DHT record             :mod:`protocols.advert`        everybody to everybody
``/echo2/heartbeat``   :mod:`protocols.heartbeat`    node to learner
``/echo2/lease``       :mod:`protocols.leases`        node to learner
``/echo2/rollouts``    :mod:`protocols.rollouts`      node to learner
``/echo2/chunks``      :mod:`protocols.chunks`        peer to peer
``/echo2/bulk``        :mod:`protocols.bulk`          peer to peer
``/echo2/probe``       :mod:`protocols.probe`         node to learner
``/echo2/meet``        :mod:`protocols.holepunch`       node to learner to node
``/echo2/status``      :mod:`protocols.status`        anybody to learner
=====================  =============================  ==========================

Nothing here reads a clock, a socket or a random number: callers pass them in.
"""
