"""Catch-up: sessions that are behind read the log at their clients' pace until they can follow live messages.

A durable session that returns first reads the messages in flight that are no longer in memory (``recall``), because they keep
their packet ids and order; then the records above its cursor. A subscription receives only records later than its own start (S3).
Reading stops when the client's window or outbox is full and resumes there, so nothing is copied and nothing is sent twice.
"""

from __future__ import annotations

from time import monotonic

from braidmq.broker.reading.context import ReadingContext
from braidmq.broker.reading.cursor import SLICE_S, LogCursor, Records, RunEnd, TakePlain
from braidmq.broker.reading.matcher import Matcher
from braidmq.broker.session.session import Session
from braidmq.lane.records.records import Record


class CatchUp:
    """One session's reading of the log, from its cursor to the end; implements `cursor.ScanReader`."""

    def __init__(self, context: ReadingContext, session: Session, matcher: Matcher) -> None:
        self.owner = session.owner
        self.name = session.client_id
        self._context = context
        self._session = session
        self._flow = session.flow
        self._matcher = matcher
        self._filters = matcher.filters
        self._cursor = LogCursor(context.source, context.idle_readers, self, leaves_out=True)

    @classmethod
    def begin(cls, context: ReadingContext, session: Session) -> CatchUp | None:
        """Read on from the session's cursor; None if it has no subscription to read for."""
        matcher = Matcher(session)
        return None if matcher.is_empty else cls(context, session, matcher)

    def run(self) -> RunEnd:
        """Read and send for a slice; when the session has caught up it follows."""
        deadline = monotonic() + SLICE_S
        if not self._matcher.take_in(deadline):
            return RunEnd.MORE
        turn = self._cursor.run(deadline)
        if turn is RunEnd.CAUGHT_UP:
            self.pause()
            self._flow.follow(self._missing())
            self._flow.note_change()
        return turn

    def _missing(self) -> dict[int, int]:
        """The positions in shards that cannot be read now, unless there is nothing to read in them."""
        positions, marks = self._flow.positions, self._context.state.marks
        return {shard: positions[shard] for shard in self._context.source.away() if positions[shard] != marks[shard]}

    def note_idle(self) -> None:
        """The client accepts no more for now."""
        self._cursor.note_idle()

    def pause(self) -> None:
        """End this reading; if the session is still behind, another one begins at its cursor."""
        self._cursor.close()
        if self._session.catch_up is self:
            self._session.catch_up = None

    def wake(self) -> None:
        """Continue in another turn."""
        connection = self._session.connection
        if connection is not None:
            connection.on_room()

    # Called by the cursor

    @property
    def positions(self) -> list[int]:
        """The session's own."""
        return self._flow.positions

    def filters(self) -> list[str]:
        """Those of the session's own subscriptions."""
        return self._filters

    def plain(self) -> TakePlain | None:
        """Sends in bulk if there is a single subscription and no hook to ask."""
        only = None if self._context.hooks.delivers else self._matcher.only
        if only is None:
            return None
        flow, subscription = self._flow, only

        def take_plain(records: Records, place: int) -> int:
            return flow.take_plain(records, place, subscription, flow.positions)

        return take_plain

    def offer_record(self, shard: int, record: Record) -> bool:
        """Send a record if it is for this session; False if there is no room for it now."""
        subscription = self._matcher.find(shard, record.timestamp, record.topic, record.publisher)
        return subscription is None or self._context.send(self._flow, subscription, shard, record)

    def note_gap(self) -> None:
        """Count it."""
        self._context.note_gap(self._session)


def feed(context: ReadingContext, session: Session) -> bool:
    """Read for a session as long as its client accepts messages; True if it can continue at once in another turn."""
    connection = session.connection
    flow = session.flow
    if connection is None or not connection.is_open:
        return False
    if session.recall is not None:
        if not session.recall.run():
            return session.recall.can_go_on
        session.recall = None
        context.relieve_groups(session.groups())
        return True  # retained messages come before the log, and have waited for this
    if flow.is_following:
        return False
    catch_up = session.catch_up
    if catch_up is None:
        catch_up = session.catch_up = CatchUp.begin(context, session)
        if catch_up is None:  # there is nothing to read for
            flow.follow()
            return False
    turn = catch_up.run()
    if turn is RunEnd.CAUGHT_UP:
        return False
    connection.lane.flush()  # bytes waiting in the outbox may be all that is in the way
    if turn is RunEnd.WAITS:
        return False  # the source wakes it
    goes_on = connection.has_room() and flow.has_room()
    if not goes_on:
        catch_up.note_idle()
    return goes_on
