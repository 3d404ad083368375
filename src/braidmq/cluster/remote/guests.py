"""Tells cores of members of shared groups whose client ids they do not decide about (decision 28).

What a core cannot be told now is kept until it can, and only as far as it still matters: a membership that has ended before the
core heard of it is nothing. So what is kept is limited by the memberships of this node, however long the core is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from braidmq.broker.ports import Refusal
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.operations import JoinGroup, LeaveGroup, ReleaseGuest
from braidmq.cluster.remote.log.core_blocks import CoreBlocks
from braidmq.cluster.remote.log.entries import CollectedGuest, EntriesWaiter
from braidmq.cluster.remote.log.log_ports import Later, NodeChannels, WaitTimer
from braidmq.cluster.remote.log.rows import NodeChange

SILENT_S: Final = 1.0  # for which a client waits until all cores know of its membership
_Group = tuple[str, str]  # name and filter


class _GuestsAtCore:
    """What one core knows of guests, and what it has to be told."""

    __slots__ = ("blocks", "is_awaited", "kept", "told", "was_connected")

    def __init__(self, blocks: CoreBlocks) -> None:
        self.blocks = blocks
        self.told: dict[int, set[_Group]] = {}  # what it may know, by channel
        self.kept: dict[tuple[int, _Group | None], tuple[NodeChange, Callable[[Refusal | None], None]]] = {}
        self.was_connected = False
        self.is_awaited = False  # clients wait until it knows of them: it is connected, or was a second ago

    @property
    def is_open(self) -> bool:
        return self.blocks.is_connected and self.blocks.full is None


class GuestNotices:
    """What this node says of guests, in entries of its own and in order."""

    def __init__(
        self,
        cores: Iterable[CoreBlocks],
        channels: NodeChannels,
        later: Later,
        ask_flush: Callable[[], None],
    ) -> None:
        self._cores = [_GuestsAtCore(core) for core in cores]
        self._core_of = {shard: core for core in self._cores for shard in core.blocks.shards}
        self._channels = channels
        self._later = later
        self._ask_flush = ask_flush

    def has_told(self, core: CoreBlocks) -> bool:
        """Whether nothing is kept for this core."""
        return not any(each.kept for each in self._cores if each.blocks is core)

    @property
    def kept(self) -> int:
        """What cores have not been told."""
        return sum(len(core.kept) for core in self._cores)

    def tell(self, changes: Iterable[NodeChange], on_answer: Callable[[NodeChange], None] | None = None) -> None:
        """Tell cores of guests; ``on_answer`` is called for each change that its core has, or no longer needs."""
        for change in changes:
            self._put(change, _ignore if on_answer is None else partial(_answered, on_answer, change))
        self._ask_flush()

    def tell_before(
        self, changes: Sequence[NodeChange], on_told: Callable[[], None], on_refused: Callable[[Refusal], None]
    ) -> None:
        """Tell cores of guests. Then one of the two is called: when all cores have answered, or were silent for a second."""
        cores = [self._core_of[change.shard] for change in changes]
        waits = [core.is_awaited for core in cores]
        latch = _Latch(sum(waits), on_told, on_refused)
        if any(waits):
            latch.timer = self._later(SILENT_S, latch.let_go)
        for change, is_awaited in zip(changes, waits, strict=True):
            self._put(change, latch.count if is_awaited else _ignore)
        self._ask_flush()
        if not any(waits):
            on_told()

    def go_on(self) -> None:
        """A core has come or gone, or takes more."""
        for core in self._cores:
            if core.blocks.is_connected:
                core.was_connected = core.is_awaited = True
            elif core.was_connected:
                core.was_connected = False
                self._later(SILENT_S, partial(self._judge_silence, core))
            if core.kept and core.is_open:
                kept, core.kept = core.kept, {}
                for change, on_answer in kept.values():
                    self._put(change, on_answer)
                self._ask_flush()

    def _judge_silence(self, core: _GuestsAtCore) -> None:
        core.is_awaited = core.blocks.is_connected

    def _put(self, change: NodeChange, on_answer: Callable[[Refusal | None], None]) -> None:
        core, operation = self._core_of[change.shard], change.operation
        assert isinstance(operation, JoinGroup | LeaveGroup | ReleaseGuest)
        is_end = isinstance(operation, ReleaseGuest)
        if not is_end and self._channels.of_client(operation.client_id) != operation.channel:
            on_answer(None)  # the channel has ended, and so has the guest
        elif core.is_open and not core.kept:
            self._send(core, change, on_answer)
        else:
            self._keep(core, change, on_answer)

    def _send(self, core: _GuestsAtCore, change: NodeChange, on_answer: Callable[[Refusal | None], None]) -> None:
        match change.operation:
            case JoinGroup(name=name, topic_filter=topic_filter, channel=channel):
                core.told.setdefault(channel, set()).add((name, topic_filter))
            case LeaveGroup(name=name, topic_filter=topic_filter, channel=channel):
                core.told.get(channel, set()).discard((name, topic_filter))
            case ReleaseGuest(channel=channel):
                core.told.pop(channel, None)
        waiter = EntriesWaiter(1, lambda: on_answer(None), on_answer, is_awaited=False)
        size = operations.size_of([change.operation])
        core.blocks.shards[change.shard].add((CollectedGuest(0, [change.operation], size, waiter),))

    def _keep(self, core: _GuestsAtCore, change: NodeChange, on_answer: Callable[[Refusal | None], None]) -> None:
        kept = core.kept
        match change.operation:
            case ReleaseGuest(channel=channel):
                for key in [each for each in kept if each[0] == channel]:
                    del kept[key]
                if channel not in core.told:
                    on_answer(None)
                    return
                kept[channel, None] = change, on_answer
            case JoinGroup(name=name, topic_filter=topic_filter, channel=channel):
                kept.pop((channel, (name, topic_filter)), None)
                kept[channel, (name, topic_filter)] = change, on_answer
            case LeaveGroup(name=name, topic_filter=topic_filter, channel=channel):
                kept.pop((channel, (name, topic_filter)), None)
                if (name, topic_filter) not in core.told.get(channel, ()):
                    on_answer(None)
                    return
                kept[channel, (name, topic_filter)] = change, on_answer


class _Latch:
    """Waits for answers, and not for all of them for ever."""

    __slots__ = ("_left", "_on_refused", "_on_told", "timer")

    def __init__(self, count: int, on_told: Callable[[], None], on_refused: Callable[[Refusal], None]) -> None:
        self.timer: WaitTimer | None = None
        self._left = count
        self._on_told = on_told
        self._on_refused = on_refused

    def count(self, refusal: Refusal | None) -> None:
        """One of the answers is there."""
        if self._left <= 0:
            return
        self._left -= 1
        if refusal is not None:
            self._end()
            self._on_refused(refusal)
        elif not self._left:
            self._end()
            self._on_told()

    def let_go(self) -> None:
        """Wait for no more answers."""
        if self._left > 0:
            self._end()
            self._on_told()

    def _end(self) -> None:
        self._left = 0
        if self.timer is not None:
            self.timer.cancel()


def _answered(on_answer: Callable[[NodeChange], None], change: NodeChange, refusal: Refusal | None) -> None:
    on_answer(change)


def _ignore(refusal: Refusal | None) -> None:
    """No client waits for that."""
