"""The blocks of one node for the shards that one core leads, when they are sent, and whether that core takes them.

Every block costs the core about as much as the messages of a quiet turn, and it commits what has arrived by the time it commits
again. So while two *rounds* of blocks are unanswered, little more is not sent: it waits until one of them is answered, or for a
millisecond if that takes longer, because other nodes have to confirm something first. Much more is sent at once.

While the core is away, publishers at home there wait for ``home_wait_s``; then the core is *absent* until it is back, and nothing
is collected for it that a client waits for. Publishers whose home is another core notice nothing of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from braidmq.broker.persistence import no_callback
from braidmq.cluster.protocol.blocks import CONGESTED
from braidmq.cluster.protocol.parts import Send
from braidmq.cluster.remote.log.entries import ABSENT, CROWDED, HomeRefusal
from braidmq.cluster.remote.log.log_ports import Later, WaitTimer
from braidmq.cluster.remote.log.rounds import Rounds
from braidmq.cluster.remote.log.shard_blocks import ShardBlocks

_ROUNDS_MAX: Final = 2
_GATHERED_S: Final = 0.001
_GATHERED_BYTES_MAX: Final = 4 * 1024  # a dozen small messages; more of them are worth a block of their own


class CoreBlocks:
    """What one core is sent. The owner of the connection calls ``connected`` and ``lost``; the log is told by ``on_change``."""

    def __init__(self, shards: Sequence[int], send: Send, later: Later, home_wait_s: float, bytes_max: int) -> None:
        """``bytes_max``: of everything that waits for this core; beyond it nothing more is taken."""
        self.shards = {shard: ShardBlocks(shard, send) for shard in shards}
        self.is_connected = False
        self.wants_presence = False  # the core has hooks for clients that connect and disconnect
        self.is_absent = True  # away for longer than publishers wait
        self.on_change: Callable[[], None] = no_callback  # publishers may have to wait, or may go on
        self._later = later
        self._home_wait_s = home_wait_s
        self._bytes_max = bytes_max
        self._is_crowded = False  # as far as bytes are concerned
        self._is_congested = False  # as the core says
        self._timer: WaitTimer | None = None
        self._rounds = Rounds()
        self._gathering: WaitTimer | None = None  # what was collected waits for an answer until then

    # The connection

    def connected(self) -> None:
        """Send what is not answered again, and from now on everything."""
        self.is_connected = True
        self.is_absent = self._is_congested = False
        self._stop_timer()
        for each in self.shards.values():
            each.connected()
        self.note_relief()

    def lost(self) -> None:
        """The connection is gone: publishers wait for the next one, for a limited time."""
        self.is_connected = False
        self._rounds.forget()
        self._stop_gathering()
        for each in self.shards.values():
            each.lost()
        if self._timer is None and not self.is_absent:
            self._timer = self._later(self._home_wait_s, self._give_up)
        self.on_change()

    def _give_up(self) -> None:
        self._timer = None
        self.is_absent = True
        for each in self.shards.values():
            each.give_up(ABSENT)
        self.note_relief()

    def close(self) -> None:
        """The node stops."""
        self._stop_timer()
        self._stop_gathering()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Sending

    def flush(self) -> None:
        """Send what was collected so far, unless it is little and enough is on its way."""
        ready = [each for each in self.shards.values() if each.can_flush]
        if not ready:
            return
        if self._rounds.open < _ROUNDS_MAX or sum(each.size - each.bytes_sent for each in ready) > _GATHERED_BYTES_MAX:
            self._send_round(ready)
        elif self._gathering is None:
            self._gathering = self._later(_GATHERED_S, self.flush_all)

    def flush_all(self) -> None:
        """Send everything collected so far."""
        self._send_round([each for each in self.shards.values() if each.can_flush])

    def _send_round(self, ready: Sequence[ShardBlocks]) -> None:
        self._stop_gathering()
        if ready:
            self._rounds.begin([(each.shard, number) for each in ready for number in each.flush()])

    def note_answer(self, shard: int, number: int) -> None:
        """A block is answered: what was gathered may be sent."""
        if self._rounds.note_answer(shard, number):
            self.flush()

    def _stop_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    @property
    def is_held(self) -> bool:
        """Whether the core has refused a block, and is not sent what was collected since."""
        return any(each.is_held for each in self.shards.values())

    # What it takes

    @property
    def size(self) -> int:
        """The bytes of everything that waits for the core."""
        return sum(each.size for each in self.shards.values())

    @property
    def refusal(self) -> HomeRefusal | None:
        """Why nothing more is taken for this core; None: it is."""
        if self.is_absent:
            return ABSENT
        return self.full

    @property
    def full(self) -> HomeRefusal | None:
        """The same for what no client waits for."""
        return CROWDED if self.size >= self._bytes_max else None

    @property
    def is_congested(self) -> bool:
        """Whether publishers should wait: much waits for the core, it says so itself, or it is away."""
        if self._is_crowded or not (self.is_connected or self.is_absent):
            return True
        # Only while it has something to answer: its next word comes with an answer.
        return self.is_connected and self._is_congested and self.size > 0

    def note_growth(self) -> None:
        """More was collected."""
        if self.size * 2 >= self._bytes_max:
            self._is_crowded = True
        self.on_change()

    def note_congestion(self, flags: int) -> None:
        """The core has said with an answer whether publishers should wait; ``note_relief`` must follow."""
        self._is_congested = bool(flags & CONGESTED)

    def note_relief(self) -> None:
        """Something was answered, or the core has come or gone."""
        if self._is_crowded and self.size * 4 <= self._bytes_max:
            self._is_crowded = False
        self.on_change()
