"""A node's side of what it asks cores for while it does not decide by the linear registry alone: locks, and ends of channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from braidmq.base.config.cluster_settings import RegistrySettings
from braidmq.base.errors import BraidError
from braidmq.cluster.eventual.bag import BagEntry
from braidmq.cluster.eventual.cluster_lock import SELF, AskLock, ClusterLock, EndLock, LockScope, LockStep, Settled
from braidmq.cluster.eventual.frames import Say
from braidmq.cluster.eventual.lock_server import LockServer
from braidmq.cluster.eventual.lock_table import LockVerdict
from braidmq.net.proto_v1_eventual import ChannelEnded, EndChannel, EventualMessage, LockAnswer, LockId, LocksKept, UnlockId


class EventualNode:
    """One node's side, for all cores."""

    def __init__(
        self,
        cores: Sequence[str],
        loop: asyncio.AbstractEventLoop,
        settings: RegistrySettings,
        *,
        home_of: Callable[[str], str],
        close: Callable[[str, int], None],
        lock_wait_s: float,
        end_wait_s: float,
    ) -> None:
        """``home_of``: the core that has a client id. ``close`` ends a channel of this node, if it has the client id.

        ``lock_wait_s``: how long a CONNECT waits for its lock; ``end_wait_s``: and then for the ends of other channels.
        """
        self.locks_missed = 0  # CONNECTs that did not get their lock in time
        self.ends_missed = 0  # channels whose node did not say in time that they have ended
        self._lock = ClusterLock(cores, LockScope(settings.lock))
        self._own: LockServer[str] = LockServer(loop, self._on_own_answer, settings.lock_timeout)  # the locks of this node alone
        self._loop = loop
        self._home_of = home_of
        self._close = close
        self._lock_wait_s = lock_wait_s
        self._end_wait_s = end_wait_s
        self._cores: dict[str, Say] = {}
        self._locking: dict[int, asyncio.Future[bool]] = {}
        self._ending: dict[int, asyncio.Future[None]] = {}
        self._last = 0

    # Locks

    async def lock(self, client_id: str) -> int | None:
        """Wait for the lock of a client id; the number to ``unlock``, None if it cannot be had in time."""
        number, steps = self._lock.acquire(client_id)
        settled = self._locking[number] = self._loop.create_future()
        timer = self._loop.call_later(self._lock_wait_s, self._give_up, number)
        self._carry_out(steps)
        try:
            return number if await settled else None
        except asyncio.CancelledError:
            self.unlock(number)
            raise
        finally:
            timer.cancel()
            self._locking.pop(number, None)

    def _give_up(self, number: int) -> None:
        settled = self._locking.get(number)
        if settled is not None and not settled.done():
            self.locks_missed += 1
            settled.set_result(False)
            self.unlock(number)

    def unlock(self, number: int) -> None:
        """A lock is no longer wanted."""
        self._carry_out(self._lock.release(number))

    def _carry_out(self, steps: Iterable[LockStep]) -> None:
        for step in steps:
            match step:
                case AskLock(core, number, key) if core == SELF:
                    self._own.lock(SELF, number, key)
                case AskLock(core, number, key):
                    self._cores[core](LockId(number, key))
                case EndLock(core, number) if core == SELF:
                    self._own.unlock(SELF, number)
                case EndLock(core, number):
                    self._cores[core](UnlockId(number))
                case Settled(number, is_held):
                    settled = self._locking.get(number)
                    if settled is not None and not settled.done():
                        settled.set_result(is_held)

    def _on_own_answer(self, answer: LockVerdict[str]) -> None:
        self._carry_out(self._lock.answered(SELF, answer.number, answer.is_granted))

    # Ends of channels

    async def end_others(self, client_id: str, others: Sequence[BagEntry]) -> None:
        """Ask the nodes of these channels to end them, and wait until they have, for a while."""
        numbers = self.ask_ends(client_id, others)
        asked = [self._loop.create_future() for _ in numbers]
        self._ending.update(zip(numbers, asked, strict=True))
        try:
            if asked:
                _, missing = await asyncio.wait(asked, timeout=self._end_wait_s)
                self.ends_missed += len(missing)
        finally:
            for number in numbers:
                self._ending.pop(number, None)

    def ask_ends(self, client_id: str, others: Sequence[BagEntry]) -> range:
        """Ask the nodes of these channels to end them; the numbers of the questions. Nothing is asked while the home is away:
        without it the client id is not granted anyway.
        """
        say = self._cores.get(self._home_of(client_id))
        first = self._last + 1
        if say is not None:
            for number, other in enumerate(others, first):
                say(EndChannel(number, client_id, other.node, other.incarnation, other.channel))
            self._last += len(others)
        return range(first, self._last + 1)

    # Cores

    def up(self, core: str, say: Say) -> None:
        """A core is connected."""
        self._cores[core] = say
        say(LocksKept(self._lock.up(core)))

    def down(self, core: str) -> None:
        """A core is away."""
        if self._cores.pop(core, None) is not None:
            self._carry_out(self._lock.down(core))

    def receive(self, core: str, message: EventualMessage) -> None:
        """What a core says. Raises BraidError if cores do not say such things."""
        match message:
            case LockAnswer(number, is_granted):
                self._carry_out(self._lock.answered(core, number, is_granted))
            case ChannelEnded(number):
                ended = self._ending.get(number)
                if ended is not None and not ended.done():
                    ended.set_result(None)
            case EndChannel():
                self._close(message.client_id, message.channel)
                self._cores[core](ChannelEnded(message.number))
            case _:
                raise BraidError(f"a core does not send {type(message).__name__}")

    def close(self) -> None:
        """The node stops."""
        self._own.close()
