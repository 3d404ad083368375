"""Tells cores of members of shared groups whose client ids they do not decide about (decision 28)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from braidmq.broker.persistence import no_callback
from braidmq.broker.ports import Change
from braidmq.cluster import operations
from braidmq.cluster.remote.core_blocks import CoreBlocks
from braidmq.cluster.remote.entries import CollectedRows, EntriesWaiter
from braidmq.cluster.remote.log_ports import Later
from braidmq.cluster.remote.rows import NodeChange

SILENT_S: Final = 1.0  # for which a client waits until all cores know of its membership


class GuestNotices:
    """Entries of the node's own, which each core gets however long it is away."""

    def __init__(self, core_of: Mapping[int, CoreBlocks], later: Later, ask_flush: Callable[[], None]) -> None:
        self._core_of = core_of
        self._later = later
        self._ask_flush = ask_flush

    def tell(self, changes: Iterable[Change], on_answer: Callable[[], None] = no_callback) -> None:
        """Tell cores of guests; ``on_answer`` is called for each change. A core that is full is told nothing."""
        for change in changes:
            assert isinstance(change, NodeChange)  # this node's storage makes no other
            core = self._core_of[change.shard]
            if core.full is None:
                waiter = EntriesWaiter(1, on_answer, lambda refusal: on_answer(), is_awaited=False)
                size = operations.size_of([change.operation])
                core.shards[change.shard].add((CollectedRows(0, [change.operation], size, waiter),))
        self._ask_flush()

    def tell_before(self, changes: Sequence[NodeChange], on_done: Callable[[], None]) -> Callable[[], None]:
        """Tell cores of guests. The result is to be called in place of ``on_done``.

        That follows when all cores that are connected have answered, or after a second.
        """
        latch = _Latch(1 + sum(self._core_of[change.shard].is_connected for change in changes), on_done)
        for change in changes:
            self.tell([change], latch.count if self._core_of[change.shard].is_connected else no_callback)
        self._later(SILENT_S, latch.let_go)
        return latch.on_own


class _Latch:
    """Waits for what a client has changed itself, and for some answers that may be late."""

    __slots__ = ("_is_own_done", "_left", "_on_done")

    def __init__(self, count: int, on_done: Callable[[], None]) -> None:
        self._left = count
        self._is_own_done = False
        self._on_done: Callable[[], None] | None = on_done

    def count(self) -> None:
        """One of the answers is there."""
        self._left -= 1
        self._judge()

    def on_own(self) -> None:
        """What must be there is."""
        self._is_own_done = True
        self.count()

    def let_go(self) -> None:
        """Wait for no more answers."""
        self._left = 0
        self._judge()

    def _judge(self) -> None:
        if self._is_own_done and self._left <= 0 and self._on_done is not None:
            on_done, self._on_done = self._on_done, None
            on_done()
