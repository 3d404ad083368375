"""What a core does for nodes whose ``registry.mode`` is not "linear": it gives out locks, and asks nodes to end channels."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from braidmq.base.errors import BraidError
from braidmq.cluster.eventual.frames import Say
from braidmq.cluster.eventual.lock_server import LockServer
from braidmq.cluster.eventual.lock_table import LockVerdict
from braidmq.cluster.membership.member import Member
from braidmq.net.proto_v1_eventual import ChannelEnded, EndChannel, EventualMessage, LockAnswer, LockId, LocksKept, UnlockId

_ENDINGS_MAX: Final = 100_000  # questions under way; of more, the oldest are forgotten


class _Ending(NamedTuple):
    """A question that was passed on."""

    asker: Member
    number: int
    target: Member


class EventualCore:
    """One core's side, for all nodes."""

    def __init__(self, is_member: Callable[[Member], bool]) -> None:
        """``is_member``: whether a node is alive, as far as this core knows, connected or not. ``serve`` follows."""
        self.locks: LockServer[Member] | None = None
        self._is_member = is_member
        self._nodes: dict[Member, Say] = {}
        self._endings: OrderedDict[int, _Ending] = OrderedDict()
        self._last = 0

    def serve(self, loop: asyncio.AbstractEventLoop, hold_s: float) -> None:
        """The core's broker is there. ``hold_s``: how long a lock is held at most."""
        self.locks = LockServer(loop, self._answer_lock, hold_s)

    def connected(self, node: Member, say: Say) -> None:
        """A node can be told something."""
        self._nodes[node] = say

    def lost(self, node: Member, say: Say) -> None:
        """The node's connection is gone. It keeps its locks: it may come back."""
        if self._nodes.get(node) == say:
            del self._nodes[node]

    def dead(self, node: Member) -> None:
        """A node is dead."""
        if self.locks is not None:
            self.locks.dead(node)
        for number, ending in list(self._endings.items()):
            if ending.target == node:
                del self._endings[number]
                self._say(ending.asker, ChannelEnded(ending.number))

    def receive(self, node: Member, message: EventualMessage) -> None:
        """What a node says. Raises BraidError if nodes do not say such things."""
        assert self.locks is not None, "nodes connect once the core serves"
        match message:
            case LockId(number, client_id):
                self.locks.lock(node, number, client_id)
            case UnlockId(number):
                self.locks.unlock(node, number)
            case LocksKept(numbers):
                self.locks.keep(node, set(numbers))
            case EndChannel():
                self._ask_end(node, message)
            case ChannelEnded(number):
                ending = self._endings.get(number)
                if ending is not None and ending.target == node:
                    del self._endings[number]
                    self._say(ending.asker, ChannelEnded(ending.number))
            case _:
                raise BraidError(f"a node does not send {type(message).__name__}")

    def _ask_end(self, asker: Member, message: EndChannel) -> None:
        target = Member(message.node, message.incarnation)
        say = self._nodes.get(target)
        if say is not None:
            self._last += 1
            self._endings[self._last] = _Ending(asker, message.number, target)
            if len(self._endings) > _ENDINGS_MAX:
                self._endings.popitem(last=False)
            say(EndChannel(self._last, message.client_id, message.node, message.incarnation, message.channel))
        elif not self._is_member(target):
            self._say(asker, ChannelEnded(message.number))
        # else its node may be there again soon; the one that asks has a deadline

    def _answer_lock(self, answer: LockVerdict[Member]) -> None:
        self._say(answer.node, LockAnswer(answer.number, answer.is_granted))

    def _say(self, node: Member, message: EventualMessage) -> None:
        say = self._nodes.get(node)
        if say is not None:
            say(message)

    def close(self) -> None:
        """The core stops."""
        if self.locks is not None:
            self.locks.close()
