"""Who is forgotten when there are too many nodes, and who is not let in, without I/O.

Identities cost nothing. So a node counts for much once a rollout of it was accepted; until then it
is one of a bounded number, in all and per address, and the first to be forgotten.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from learner.state.node import Node

MAX_NODES: Final = 4096
MAX_UNPROVEN: Final = 1024
"""Nodes of which nothing was accepted yet."""
MAX_UNPROVEN_PER_HOST: Final = 64
"""Of them, those that come from one address."""
FORGET_AFTER_S: Final = 600.0
"""A node of which nothing was ever accepted is forgotten so long after it was lost."""


class NoRoomError(Exception):
    """There is no room for one more node now; the text says why, for its owner to read."""


def who_gives_way(nodes: Collection[Node], *, host: str, is_proven: bool) -> Node | None:
    """Return whom to forget so that one more node can be entered; None if there is room.

    Args:
        nodes: all that are known.
        host: the address from which the newcomer comes; empty if it is not known.
        is_proven: whether rollouts of the newcomer were accepted before.

    Raises:
        NoRoomError: nobody gives way to it.
    """
    unproven = [node for node in nodes if not node.num_accepted]
    if not is_proven:
        neighbours = [node for node in unproven if host and node.host == host]
        if len(neighbours) >= MAX_UNPROVEN_PER_HOST:
            if (victim := _longest_lost(neighbours)) is not None:
                return victim
            raise NoRoomError(
                f"{len(neighbours)} nodes from this address have not delivered anything yet; "
                "there is room for more as soon as one of them has, or leaves"
            )
    if len(nodes) < MAX_NODES and (is_proven or len(unproven) < MAX_UNPROVEN):
        return None
    victim = _longest_lost(unproven) or _of_the_fullest_host(unproven, host, is_proven=is_proven)
    if victim is None and len(nodes) >= MAX_NODES:
        victim = _longest_lost(nodes)
    if victim is None:
        raise NoRoomError("too many nodes take part already; there may be room later")
    return victim


def idle(nodes: Collection[Node], now_s: float) -> list[Node]:
    """Return the nodes of which nothing was ever accepted, and that have been gone for long."""
    return [
        node
        for node in nodes
        if node.is_lost and not node.num_accepted and now_s - node.heard_at_s > FORGET_AFTER_S
    ]


def by_use(nodes: Collection[Node]) -> Sequence[Node]:
    """Return the nodes, those first that one would miss most."""
    return sorted(
        nodes,
        key=lambda node: (
            node.is_lost and not node.num_accepted,
            not node.num_accepted,
            node.is_lost,
            -node.num_accepted,
            -node.heard_at_s,
            node.peer,
        ),
    )


def _longest_lost(nodes: Collection[Node]) -> Node | None:
    lost = [node for node in nodes if node.is_lost]
    return min(lost, key=lambda node: node.heard_at_s, default=None)


def _of_the_fullest_host(unproven: Collection[Node], host: str, *, is_proven: bool) -> Node | None:
    """Return the longest silent of the address from which most come, if it has more than ours."""
    num_of = Counter(node.host for node in unproven)
    most = max(num_of.values(), default=0)
    if not is_proven and most <= num_of[host] + 1:
        return None
    among = [node for node in unproven if num_of[node.host] == most]
    return min(among, key=lambda node: node.heard_at_s, default=None)
