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

from time import monotonic

from braidmq.broker.messages.message import make_message
from braidmq.broker.ports import Positions, Refusal
from braidmq.broker.reading.context import ReadingContext
from braidmq.broker.reading.cursor import SLICE_S, LogCursor, Records, RunEnd, TakePlain, is_shown
from braidmq.broker.session.readers import ReplayReader
from braidmq.broker.session.session import Session
from braidmq.lane.path.message import Message
from braidmq.lane.records.records import Record
from braidmq.lane.routing.delivery_rules import for_publisher
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.properties import Properties

REPLAYS_MAX = 32  # of one session at the same time
READERS_MAX = 128  # of a node: replays and shared groups that read at the same time

_STORE_AGAIN_S = 1.0  # after which to try again when a row was refused
_END_MARK = Properties(user_properties=(("replay-end", "1"),))


class Replay:
    """The replay of one subscription; implements `cursor.ScanReader`. It lives as long as its session."""

    def __init__(
        self,
        context: ReadingContext,
        session: Session,
        written: str,
        subscription: Subscription,
        positions: list[int],
        since: Positions,
    ) -> None:
        """Read from ``positions`` on; the subscription was made when the log was at ``since``."""
        self.subscription = subscription
        self.owner = session.owner
        self.name = session.client_id
        self.positions = positions  # everything at or below was sent, or is not for it
        self.tells_end = False
        self.is_merged = False
        self._context = context
        self._session = session
        self._written = written
        self._since = since
        self._cursor = LogCursor(context.source, context.readers, self)
        self._is_stored = not session.is_durable  # the row says that it is merged
        self._is_storing = False
        self._is_answered = False  # SUBACK is under way

    @classmethod
    def merged(cls, context: ReadingContext, session: Session, written: str, subscription: Subscription) -> Replay:
        """A replay that has only its end marker left to send."""
        over = cls(context, session, written, subscription, [], ())
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
        self._cursor.close()

    def wake(self) -> None:
        """Continue in another turn."""
        if self._session.connection is not None:
            self._session.connection.on_room()

    def run(self, deadline: float) -> RunEnd:
        """Read and send until then, or as much as the client accepts; CAUGHT_UP when nothing is left to do."""
        if not self._is_answered:
            return RunEnd.WAITS
        if not self.is_merged:
            before = list(self.positions)
            turn = self._cursor.run(deadline)
            if self.positions != before:
                self._session.flow.note_change()
            if turn is not RunEnd.CAUGHT_UP:
                return turn
            self._merge()
        return self._finish()

    # Called by the cursor

    def filters(self) -> list[str]:
        """Its own."""
        return [self.subscription.topic_filter.decode()]

    def plain(self) -> TakePlain | None:
        """Sends in bulk unless No Local or a hook has to be asked."""
        flow, subscription, positions = self._session.flow, self.subscription, self.positions
        if subscription.no_local or self._context.hooks.delivers:
            return None

        def take_plain(records: Records, place: int) -> int:
            return flow.take_plain(records, place, subscription, positions)

        return take_plain

    def offer_record(self, shard: int, record: Record) -> bool:
        """Send a record unless it is hidden from this replay; False if there is no room for it now."""
        subscription = self.subscription
        if not is_shown(shard, record, self._since) or for_publisher(subscription, record.publisher) is None:
            return True
        return self._context.send(self._session.flow, subscription, shard, record)

    def note_gap(self) -> None:
        """Count it."""
        self._context.note_gap(self._session)

    # The end

    def _merge(self) -> None:
        """From now on it is an ordinary subscription, which receives what is later than this."""
        context, session = self._context, self._session
        self.is_merged = True
        self.pause()
        self.subscription.is_behind = False
        context.route(session, self.subscription.topic_filter)
        session.starts[self._written] = tuple(context.state.marks)
        session.restart_catch_up()

    def _finish(self) -> RunEnd:
        """Store that it is merged, then tell the client."""
        context, session = self._context, self._session
        if not self._is_stored:
            if not self._is_storing:
                self._is_storing = True
                context.writer.change(context.rows.cursor_changes(session), self._on_stored, self._on_not_stored)
            return RunEnd.WAITS
        if self.tells_end:
            connection = session.connection
            if connection is None or not connection.has_room():
                return RunEnd.FULL
            session.flow.deliver(_end_mark(self._written), self.subscription, 0, False)
            self.tells_end = False
            if session.is_durable:
                context.writer.write(context.rows.subscription_row(session, self._written))
        return RunEnd.CAUGHT_UP

    def _on_stored(self) -> None:
        # The end is told in a turn of its own: messages of QoS 2 that waited for the same write go out before it.
        self._is_stored = True
        self.wake()

    def _on_not_stored(self, refusal: Refusal) -> None:
        self._is_storing = False
        self._context.source.later(_STORE_AGAIN_S, self.wake)


def _end_mark(written: str) -> Message:
    """An empty message to the filter's own text."""
    return make_message(written, b"", properties=_END_MARK)


def begin(
    context: ReadingContext,
    session: Session,
    written: str,
    subscription: Subscription,
    tells_end: bool,
    positions: list[int] | None,
) -> ReplayReader | None:
    """A subscription was made or renewed, and replays from these positions; None: as it did before.

    The caller lets the result ``begin`` when the client has its SUBACK.
    """
    replay: ReplayReader | None = session.replays.get(written)
    if positions is not None:
        if replay is not None:
            replay.pause()
        since = session.starts[written] = tuple(context.state.marks)
        replay = Replay(context, session, written, subscription, positions, since)
    elif replay is not None:
        replay.subscription = subscription
    elif tells_end:
        replay = Replay.merged(context, session, written, subscription)
    else:
        return None
    replay.tells_end |= tells_end
    subscription.is_behind = not replay.is_merged
    session.replays[written] = replay
    return replay


def restore(
    context: ReadingContext,
    session: Session,
    written: str,
    subscription: Subscription,
    tells_end: bool,
    cursor: list[int] | None,
) -> None:
    """Restore the replay that a subscription's row describes, if there is one."""
    if cursor is None and not tells_end:
        return
    replay = Replay.merged(context, session, written, subscription)
    if cursor is not None:
        replay = Replay(context, session, written, subscription, cursor, session.starts[written])
        subscription.is_behind = True
    replay.tells_end = tells_end
    replay.begin()
    session.replays[written] = replay


def feed(session: Session) -> bool:
    """Let the session's replays read as long as its client accepts messages; True if they can continue in another turn."""
    connection, replays = session.connection, session.replays
    if connection is None or not replays or session.recall is not None:
        return False
    deadline = monotonic() + SLICE_S
    goes_on = False
    for written, replay in list(replays.items()):
        turn = replay.run(deadline)
        if replays.get(written) is not replay:
            continue  # sending has ended the connection
        if turn is RunEnd.CAUGHT_UP:
            del replays[written]
            continue
        # Another begins in the next turn.
        del replays[written]
        replays[written] = replay
        if turn is RunEnd.FULL or monotonic() >= deadline:
            goes_on = True
            break
        goes_on |= turn is RunEnd.MORE
    connection.lane.flush()
    return goes_on and connection.has_room() and session.flow.has_room()


def pause_all(session: Session) -> None:
    """The client has disconnected; pending end markers are sent when it returns."""
    for replay in session.replays.values():
        replay.pause()
        replay.begin()
