"""Messages from a peer: bodies that its `PeerOutlet` has made become deliveries to this node's own subscribers.

QoS 0 goes to its destinations at once, except back to the peer. Records go through the node's `CommitOutcomes`, which shows them
in order, a bounded number in each turn. A body that is too much work for one turn is left where it stopped: ``go_on`` continues
in a later one, and the owner hands over nothing else meanwhile.

Nothing of a body is believed: each length is compared with what is there, and what is wrong raises `BadBody`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from braidmq.base.errors import BraidError, Corruption, UsageError
from braidmq.lane.path.lane import Lane
from braidmq.lane.path.message import Message, from_parser, from_record
from braidmq.lane.path.parser import Parser
from braidmq.lane.peers.peer import CONTINUED, FEED, FEED_HEAD_BYTES, FORWARD, FORWARD_HEAD_BYTES, QOS0, V5, PeerFlow
from braidmq.lane.recording.commit_outcomes import CommitOutcomes
from braidmq.lane.records.records import Record
from braidmq.lane.routing.routes import Route

# C constants in the compiled form.
_QOS0, _FORWARD, _FEED, _V5, _CONTINUED = QOS0, FORWARD, FEED, V5, CONTINUED
_FEED_HEAD, _FORWARD_HEAD = FEED_HEAD_BYTES, FORWARD_HEAD_BYTES
_RECORD_WORK = 3  # of decoding a record, in deliveries
_RESOLVE_WORK = 20  # a topic that differs from the previous one
_LONG_WORK = 60  # a message on the slow path


class BadBody(BraidError):
    """The peer sent a body that cannot be read: the connection must be closed."""


class PeerReceiver:
    """Reads the bodies of one connection of a peer, in the order in which they arrive."""

    __slots__ = (
        "_at", "_body", "_destination", "_flags", "_kind", "_last_route", "_last_topic", "_last_version", "_part_bytes", "_parts",
        "item_bytes_max", "lane", "messages", "on_slow", "outcomes", "source",
    )  # fmt: skip

    def __init__(self, lane: Lane, outcomes: CommitOutcomes, source: PeerFlow, item_bytes_max: int) -> None:
        self.lane = lane
        self.outcomes = outcomes
        self.source = source  # the flow of this peer, to which its own QoS 0 messages do not return
        self.item_bytes_max = item_bytes_max  # of a frame or record that arrives in parts
        # Replaces showing a QoS 0 message whose route has flags; the source is muted during the call.
        self.on_slow: Callable[[Message, Route], None] | None = None
        self.messages = 0  # received since the start
        self._parts: list[bytes] = []  # of a frame or record that is not complete
        self._part_bytes = 0
        self._kind = self._flags = 0
        self._destination = 0
        self._body: bytes | None = None  # not completely processed
        self._at = 0  # how far it is processed
        self._last_topic = b""
        self._last_route: Route | None = None
        self._last_version = -1

    def take(self, kind: int, flags: int, destination: int, body: bytes) -> bool:
        """Process a body of kind QOS0, FORWARD or FEED; False if a part is left for ``go_on``. Raises BadBody."""
        assert self._body is None, "the last body is not processed"
        if kind not in (_QOS0, _FORWARD, _FEED) or flags & ~(_V5 | _CONTINUED) or (kind != _QOS0 and flags & _V5):
            raise BadBody(f"a body of kind {kind} with flags {flags}")
        if kind == _FEED and not 0 <= destination < len(self.lane.state.marks):
            raise BadBody(f"a feed of shard {destination}, which does not exist")
        if self._parts and (kind, flags & _V5, destination) != (self._kind, self._flags & _V5, self._destination):
            raise BadBody("another body before the rest of a packet or record")
        self._kind = kind
        self._flags = flags
        self._destination = destination
        if self._parts or flags & _CONTINUED:
            self._part_bytes += len(body)
            if self._part_bytes > self.item_bytes_max:
                raise BadBody(f"a packet or record of more than {self.item_bytes_max} bytes")
            self._parts.append(body)
            if flags & _CONTINUED:
                return True
            body = b"".join(self._parts)
            self._parts = []
            self._part_bytes = 0
        self._body = body
        self._at = 0
        return self.go_on()

    def go_on(self) -> bool:
        """Continue with the last body in a new turn; False if there is more. Raises BadBody."""
        if self._body is None:
            return True
        self.lane.state.work = 0
        try:
            is_done = self._run_frames_muted() if self._kind == _QOS0 else self._run_records()
        except BaseException:
            self._body = None
            raise
        finally:
            self._last_route = None  # it would keep ended sessions in memory
            self.lane.flush()
        if is_done:
            self._body = None
        return is_done

    # QoS 0

    def _run_frames_muted(self) -> bool:
        outlet = self.source.channel
        if outlet is None:
            return self._run_frames()
        was_muted = outlet.is_muted
        outlet.is_muted = True
        try:
            return self._run_frames()
        finally:
            outlet.is_muted = was_muted

    def _run_frames(self) -> bool:
        lane = self.lane
        state = lane.state
        parser = lane.parser
        body = self._body
        assert body is not None  # the caller has set it
        size = len(body)
        v5 = self._flags & _V5 != 0
        parser.load(body, size, size)
        parser.end = self._at
        while parser.end < size:
            if state.work > state.work_max:
                self._at = parser.end
                return False
            state.work += 1
            status = parser.next()
            if status <= 0:
                raise BadBody("a packet without its end")
            if parser.kind != 3 or parser.parse_publish(v5) or parser.qos or parser.alias_at >= 0:
                raise BadBody("a packet that is not a valid PUBLISH with QoS 0")
            self.messages += 1
            route = self._last_route
            if route is None or self._last_version != lane.routes.version or not parser.topic_is(self._last_topic):
                route = self._find_route(parser)
                if route is None:  # this node allows fewer levels
                    state.counters.dropped_no_subscribers += 1
                    continue
            if not route.flags:
                lane.forward(parser, route, self.source, v5)
                continue
            state.work += _LONG_WORK
            message = from_parser(parser, route.topic, "", monotonic() if parser.expiry_at >= 0 else 0.0)
            if self.on_slow is not None:
                self.on_slow(message, route)
            else:
                self.outcomes.show(message, self.source, None, 0, 0)
        return True

    def _find_route(self, parser: Parser) -> Route | None:
        lane = self.lane
        lane.state.work += _RESOLVE_WORK
        visited = lane.routes.visited
        topic = parser.topic()
        route = lane.routes.resolve(topic)
        lane.state.work += lane.routes.visited - visited
        self._last_topic = topic
        self._last_route = route
        self._last_version = lane.routes.version
        return route

    # Records

    def _run_records(self) -> bool:
        """Show the records of the body; the backlog bounds how many wait."""
        state = self.lane.state
        outcomes = self.outcomes
        body = self._body
        assert body is not None  # the caller has set it
        size = len(body)
        at = self._at
        is_feed = self._kind == _FEED
        head = _FEED_HEAD if is_feed else _FORWARD_HEAD
        shard = self._destination if is_feed else 0
        timestamp = 0
        try:
            while at < size:
                if state.work > state.work_max or outcomes.is_late:
                    self._at = at
                    return False
                state.work += _RECORD_WORK
                if size - at < head:
                    raise BadBody("a record without its head")
                if is_feed:
                    if body[at] & 0x80:
                        raise BadBody("a record with an invalid timestamp")
                    timestamp = _number(body, at, 8)
                    if timestamp == 0:
                        raise BadBody("a record with an invalid timestamp")
                end = at + head + _number(body, at + head - 4, 4)
                if end > size:
                    raise BadBody("a record without its end")
                message = _message(shard, timestamp, body[at + head : end])
                at = end
                self.messages += 1
                outcomes.show_record(message)
        finally:
            outcomes.end_records()
        return True


def _number(body: bytes, at: int, count: int) -> int:
    """A big-endian number of this many bytes."""
    number = 0
    end = at + count
    while at < end:
        number = number << 8 | body[at]
        at += 1
    return number


def _message(shard: int, timestamp: int, value: bytes) -> Message:
    """The message of a record; raises BadBody if it is not one."""
    try:
        record = Record(timestamp, value)
        message = from_record(shard, record)
    except (Corruption, UsageError, ValueError, OverflowError) as problem:
        raise BadBody(f"a record that cannot be read: {problem}") from None
    # The remaining time is written there when the message is sent.
    if message.expiry_offset != -1 and not 0 <= message.expiry_offset <= len(message.properties) - 4:
        raise BadBody("a record whose expiry is not among its properties")
    return message
