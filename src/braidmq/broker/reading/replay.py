"""Replay subscriptions: each reads the log with its own cursor until it has caught up (S3).

    reading  --caught up-->  merged  --its row is on disk, the client was told the end if it asked-->  over

While it reads, the subscription *is behind*: it is not offered recorded messages live, because it will read them in order. When
no committed records are left, it becomes an ordinary subscription in the same turn of the loop, so that it neither misses nor
repeats a message.

History hides records that exist only for durable sessions. Those recorded after SUBSCRIBE are delivered here nevertheless,
because any subscription would have received them live.

The cursor of a durable session's replay is in the row of its subscription. It is always written together with the session's own
cursor, because messages in flight come from both.
"""

from __future__ import annotations

from enum import Enum, auto
from time import monotonic
from typing import TYPE_CHECKING

from braidmq.broker.messages.message import make_message
from braidmq.broker.ports import LogScan, Positions, Refusal
from braidmq.broker.reading.catch_up import note_gaps, offer
from braidmq.broker.reading.shown import ShownScan
from braidmq.lane.path.message import Message
from braidmq.lane.path.subscription import Subscription
from braidmq.lane.records.records import Record
from braidmq.mqtt.properties import Properties

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker
    from braidmq.broker.connection.connection import Connection
    from braidmq.broker.session.session import Session

REPLAYS_MAX = 32  # of one session at the same time
READERS_MAX = 128  # of a node: those who read at the same time

_SLICE_S = 0.0005  # of reading for one session, before others have their turn
_READ = 128  # records asked for at a time
_RETRY_S = 0.05  # after which to look again whether there is memory for what is to be read
_STORE_AGAIN_S = 1.0
_END_MARK = Properties(user_properties=(("replay-end", "1"),))


class Turn(Enum):
    """How a turn of reading ended."""

    MORE = auto()  # there is more to read
    FULL = auto()  # the client takes no more for now
    WAITS = auto()  # for the disk or for memory; it is woken
    OVER = auto()


class Replay:
    """The replay of one subscription. It may wait, with or without a client, as long as its session lives."""

    def __init__(
        self, broker: Broker, session: Session, written: str, subscription: Subscription, positions: list[int], since: Positions
    ) -> None:
        """Read from ``positions`` on; the subscription was made when the log was at ``since``."""
        self.subscription = subscription
        self.owner = session.owner  # whom its place among the readers is counted for
        self.positions = positions  # everything at or below was sent, or is not for it
        self.tells_end = False
        self.is_merged = False
        self._broker = broker
        self._session = session
        self._written = written
        self._since = since
        self._replay: LogScan | None = None
        self._read_ahead: list[tuple[int, Record]] = []
        self._place = 0  # in it: what comes next was not sent yet
        self._is_stored = not session.is_durable  # the row says that it is merged
        self._is_storing = False
        self._is_answered = False  # SUBACK is under way

    @classmethod
    def merged(cls, broker: Broker, session: Session, written: str, subscription: Subscription) -> Replay:
        """One with nothing left to do but to tell the end."""
        over = cls(broker, session, written, subscription, [], ())
        over.tells_end = over.is_merged = over._is_stored = True
        return over

    @property
    def cursor(self) -> Positions | None:
        """Its positions; None once it is merged."""
        return None if self.is_merged else tuple(self.positions)

    def begin(self) -> None:
        """The client has its answer: messages may follow."""
        self._is_answered = True

    def pause(self) -> None:
        """Release the read-ahead."""
        self._replay = None
        self._read_ahead = []
        self._place = 0
        self._broker.readers.leave(self)

    def wake(self) -> None:
        """Try again soon."""
        if self._session.connection is not None:
            self._session.connection.on_room()

    def run(self, deadline: float) -> Turn:
        """Read and send until then, or as far as the client takes it."""
        if not self._is_answered:
            return Turn.WAITS
        if not self.is_merged:
            turn = self._read(deadline)
            if turn is not Turn.OVER:
                return turn
            self._merge()
        return self._finish()

    # Reading

    def _read(self, deadline: float) -> Turn:
        """OVER when it has caught up."""
        readers = self._broker.readers
        if not readers.admit(self):
            return Turn.WAITS
        replay = self._replay
        if replay is None:
            start = dict(enumerate(self.positions))
            topic_filter = self.subscription.topic_filter.decode()
            found = self._broker.turn_writer.log.replay([topic_filter], start, with_session_only=True)
            replay = self._replay = ShownScan(found, self._broker.state)
        while True:
            if not self._send_waiting():
                readers.note_idle(self)
                return Turn.FULL
            note_gaps(self._broker, self._session, replay)
            if replay.is_caught_up:
                return Turn.OVER
            left_s = deadline - monotonic()
            if left_s <= 0:
                return Turn.MORE
            self._read_ahead = replay.next(_READ, slice_s=left_s)
            self._place = 0
            if not self._read_ahead:
                self._adopt(replay)
                if replay.is_waiting:
                    self._broker.loop.call_later(_RETRY_S, self.wake)
                    return Turn.WAITS

    def _send_waiting(self) -> bool:
        """Send what was read; False if the client takes no more."""
        broker, flow, subscription, records = self._broker, self._session.flow, self.subscription, self._read_ahead
        is_plain = not subscription.no_local and not broker.hooks.delivers
        before = self._place
        while self._place < len(records):
            if is_plain:
                self._place = flow.take_plain(records, self._place, subscription, self.positions)
                if self._place == len(records):
                    break
            shard, record = records[self._place]
            if not self._is_hidden(shard, record) and not offer(broker, flow, subscription, shard, record):
                break
            self._place += 1
            self.positions[shard] = record.timestamp
        if self._place > before:
            flow.note_change()
        return self._place == len(records)

    def _is_hidden(self, shard: int, record: Record) -> bool:
        if record.session_only and record.timestamp <= self._since[shard]:
            return True
        return self.subscription.for_publisher(record.publisher) is None

    def _adopt(self, replay: LogScan) -> None:
        for shard, position in replay.positions().items():
            self.positions[shard] = position
        self._session.flow.note_change()

    # The end

    def _merge(self) -> None:
        """From now on it is an ordinary subscription, which gets what is later than this."""
        broker, session = self._broker, self._session
        self.is_merged = True
        self.pause()
        self.subscription.is_behind = False
        broker.subscriptions.route(session, self.subscription.topic_filter)
        session.starts[self._written] = tuple(broker.state.marks)
        session.catch_up = None  # what it reads for has changed

    def _finish(self) -> Turn:
        """Write down that it is merged, then tell the client."""
        broker, session = self._broker, self._session
        if not self._is_stored:
            if not self._is_storing:
                self._is_storing = True
                broker.turn_writer.change(broker.session_storage.cursor_changes(session), self._on_stored, self._on_not_stored)
            return Turn.WAITS
        if self.tells_end:
            connection = session.connection
            if connection is None or not connection.has_room():
                return Turn.FULL
            session.flow.deliver(_end_mark(self._written), self.subscription, 0, False)
            self.tells_end = False
            if session.is_durable:
                broker.turn_writer.write(broker.session_storage.subscription_row(session, self._written))
        return Turn.OVER

    def _on_stored(self) -> None:
        # The end is told in a turn of its own: messages of QoS 2 that waited for the same write go out before it.
        self._is_stored = True
        self.wake()

    def _on_not_stored(self, refusal: Refusal) -> None:
        self._is_storing = False
        self._broker.loop.call_later(_STORE_AGAIN_S, self.wake)


def _end_mark(written: str) -> Message:
    """An empty message to the filter's own text."""
    return make_message(written, b"", properties=_END_MARK)


def begin(
    broker: Broker, session: Session, written: str, subscription: Subscription, tells_end: bool, positions: list[int] | None
) -> Replay | None:
    """A subscription was made or renewed, and looks back from these positions; None: as it did before.

    What comes back is to be begun when the client has its answer.
    """
    replay = session.replays.get(written)
    if positions is not None:
        if replay is not None:
            replay.pause()
        since = session.starts[written] = tuple(broker.state.marks)
        replay = Replay(broker, session, written, subscription, positions, since)
    elif replay is not None:
        replay.subscription = subscription
    elif tells_end:
        replay = Replay.merged(broker, session, written, subscription)
    else:
        return None
    replay.tells_end |= tells_end
    subscription.is_behind = not replay.is_merged
    session.replays[written] = replay
    return replay


def restore(
    broker: Broker, session: Session, written: str, subscription: Subscription, tells_end: bool, cursor: list[int] | None
) -> None:
    """Take up what a subscription's row says of its replay, if it does."""
    if cursor is None and not tells_end:
        return
    replay = Replay.merged(broker, session, written, subscription)
    if cursor is not None:
        replay = Replay(broker, session, written, subscription, cursor, session.starts[written])
        subscription.is_behind = True
    replay.tells_end = tells_end
    replay.begin()
    session.replays[written] = replay


def feed(connection: Connection, session: Session) -> bool:
    """Let the session's replays read, as far as its client takes it; True if they can go on at once in another turn."""
    replays = session.replays
    if not replays or session.recall is not None:
        return False
    deadline = monotonic() + _SLICE_S
    goes_on = False
    for written, replay in list(replays.items()):
        turn = replay.run(deadline)
        if replays.get(written) is not replay:
            continue  # sending has ended the connection
        if turn is Turn.OVER:
            del replays[written]
            continue
        # Another begins in the next turn.
        del replays[written]
        replays[written] = replay
        if turn is Turn.FULL or monotonic() >= deadline:
            goes_on = True
            break
        goes_on |= turn is Turn.MORE
    connection.lane.flush()
    return goes_on and connection.has_room() and session.flow.has_room()


def pause_all(session: Session) -> None:
    """The client has disconnected; pending end markers are sent when it returns."""
    for replay in session.replays.values():
        replay.pause()
        replay.begin()
