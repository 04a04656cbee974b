"""Answers the owner's commands, which come over the control socket."""

from collections.abc import Callable
from typing import assert_never

import trio

from node.control.messages import (
    CommandDone,
    DrainCommand,
    GetStatus,
    NodeSnapshot,
    PauseCommand,
    Reply,
    Request,
    ResumeCommand,
    SetCommand,
)
from node.owner.keeper import OwnerKeeper


class ControlHandler:
    """One node's answers."""

    def __init__(self, keeper: OwnerKeeper, snapshot: Callable[[float], NodeSnapshot]) -> None:
        self._keeper = keeper
        self._snapshot = snapshot

    def answer(self, request: Request) -> Reply:
        """Do what is asked, and say what that was.

        Raises:
            UsageError: what is asked for makes no sense; nothing was done.
        """
        now_s = trio.current_time()
        match request:
            case GetStatus():
                return self._snapshot(now_s)
            case PauseCommand(for_s, why):
                return CommandDone(self._keeper.pause(for_s=for_s, why=why, now_s=now_s))
            case ResumeCommand():
                return CommandDone(self._keeper.resume(now_s))
            case DrainCommand():
                return CommandDone(self._keeper.drain(now_s))
            case SetCommand(changes):
                return CommandDone(self._keeper.change(changes, now_s))
            case _:
                assert_never(request)
