"""The session of a client id: subscriptions, the message flow, the will, and its expiry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from sys import getsizeof
from time import time
from typing import TYPE_CHECKING

from braidmq.broker.messages.retained import RetainedFeed
from braidmq.broker.ports import Positions
from braidmq.broker.session.ports import Grant
from braidmq.broker.session.readers import CatchUpReader, RecallReader, ReplayReader
from braidmq.broker.shared.cursor import GroupCursor
from braidmq.broker.shared.group import Group, group_of
from braidmq.broker.shared.ports import RoomWaiter
from braidmq.broker.timers import Timer
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.delivery_rules import merge
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import Will
from braidmq.mqtt.text_pairs import TextPairs
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX, SHARE_PREFIX, matches, parse_subscription

if TYPE_CHECKING:
    from braidmq.broker.connection.connection import Connection

SMALL_WILL_BYTES = 1024
_PAIR_BYTES = 112  # a user property beside its two texts: a tuple, its place among the others, and rounding
_EMPTY_TEXT_BYTES = getsizeof("")
NEVER = 0xFFFF_FFFF  # the Session Expiry Interval that means: do not expire


class Session:
    """The state of one client id."""

    __slots__ = (
        "away_since", "catch_up", "client_id", "connection", "created_at", "created_wall", "ended_at", "expiry_s",
        "expiry_timer", "feeds", "filter_bytes", "filter_levels", "flow", "gaps", "guard", "is_clean", "is_provisional",
        "replays", "lost", "next_will", "next_will_bytes", "recall", "replay_forms", "replaying", "shares", "starts",
        "stays_anonymous", "subscriptions", "user_name", "will", "will_bytes", "will_timer",
    )  # fmt: skip

    def __init__(self, client_id: str, flow: LogFlow, now: float) -> None:
        self.client_id = client_id
        self.flow = flow
        self.connection: Connection | None = None
        self.user_name: str | None = None
        # A client without a user owned it while there were users, or took it from a user: it is never given to a user.
        self.stays_anonymous = False
        self.created_at = now
        self.ended_at = 0.0  # when the last connection ended; 0: connected
        self.away_since: float | None = None  # the same on the clock of deadlines, which leaves out pauses; None: it never has
        self.expiry_s = 0
        self.is_clean = True  # the last CONNECT asked for a clean start
        self.is_provisional = True  # no client was told of it and it is not on disk: it ends if its CONNECT is refused
        self.expiry_timer: Timer | None = None
        self.will: Will | None = None  # published if the connection ends without a DISCONNECT
        self.will_timer: Timer | None = None
        self.next_will: Will | None = None  # of a client that holds the session and waits for CONNACK
        self.will_bytes = self.next_will_bytes = 0  # the memory that these take, if they are large
        self.subscriptions: dict[str, Subscription] = {}  # by the filter as the client wrote it
        self.filter_levels = self.filter_bytes = 0  # of all their filters together, bytes as the client wrote them
        self.created_wall = time()
        self.guard = 0  # of the connection that owns it
        self.starts: dict[str, Positions] = {}  # by filter as written: recorded messages at or below are not for it (S3)
        self.recall: RecallReader | None = None  # reads messages in flight that only the log has
        self.catch_up: CatchUpReader | None = None  # reads the records above the cursor
        self.replays: dict[str, ReplayReader] = {}  # by filter as written: those that still read the log
        # As which $replay subscriptions a filter was written, by filter; if it is shared, by the key of its group.
        self.replay_forms: dict[bytes | tuple[str, bytes], list[str]] = {}
        self.lost = self.gaps = 0  # messages in flight, and stretches of the log, deleted by retention before the client had them
        self.shares: dict[RoomWaiter, None] | None = None  # groups that wait until it, or another member, accepts more
        self.replaying: list[GroupCursor] | None = None  # groups that it created with a start; some may have caught up
        self.feeds: OrderedDict[bytes, RetainedFeed] | None = None  # retained messages still to be delivered, by filter

    @property
    def is_connected(self) -> bool:
        """Whether a client is using it now."""
        return self.connection is not None

    def is_open_to(self, user_name: str | None) -> bool:
        """Whether a client of this user may resume it; a user may resume a session without a user unless it stays anonymous."""
        return self.user_name == user_name or (self.user_name is None and not self.stays_anonymous)

    @property
    def grant(self) -> Grant:
        """The grant of the last connection that took it."""
        return Grant(self.client_id, self.guard)

    @property
    def owner(self) -> object:
        """The owner of its log readers: its user, or the client id without a user."""
        return ("client", self.client_id) if self.user_name is None else ("user", self.user_name)

    def replay_count(self) -> int:
        """How many of its subscriptions replay, including those of shared groups that it has created."""
        if self.replaying is not None:
            self.replaying = [log for log in self.replaying if log.is_replaying] or None
        return len(self.replays) + len(self.replaying or ())

    def match(self, message: Message) -> Subscription | None:
        """The session's own subscription that a message matches; None if none does any more."""
        topic = message.topic.decode()
        return merge([each for each in self.subscriptions.values() if matches(each.topic_filter.decode(), topic)])

    def groups(self) -> set[Group]:
        """The shared groups that it is a member of."""
        return {group for each in self.subscriptions.values() if (group := group_of(each)) is not None}

    def hold(self, written: str, subscription: Subscription) -> None:
        """Add or replace the subscription with this filter as written."""
        if written not in self.subscriptions:
            self.filter_levels += levels_of(subscription.topic_filter)
            self.filter_bytes += len(written.encode())
        self.subscriptions[written] = subscription
        if written.startswith("$") and parse_subscription(written).replay is not None:
            forms = self.replay_forms.setdefault(_root(subscription), [])
            if written not in forms:
                forms.append(written)

    def let_go(self, written: str) -> None:
        """Remove the subscription with this filter as written."""
        subscription = self.subscriptions.pop(written)
        self.filter_levels -= levels_of(subscription.topic_filter)
        self.filter_bytes -= len(written.encode())
        self.starts.pop(written, None)
        self.restart_catch_up()
        replay = self.replays.pop(written, None)
        if replay is not None:
            replay.pause()
        forms = self.replay_forms.get(_root(subscription), [])
        if written in forms:
            forms.remove(written)
            if not forms:
                del self.replay_forms[_root(subscription)]

    def restart_catch_up(self) -> None:
        """The subscriptions have changed: restart catch-up at the cursor."""
        if self.catch_up is not None:
            self.catch_up.pause()

    def united(self, topic_filter: bytes) -> Subscription | None:
        """One destination for all forms of this filter that the client uses, except shared ones; None without any."""
        name = topic_filter.decode()
        forms = (name, EXCLUSIVE_PREFIX + name, *self.replay_forms.get(topic_filter, ()))
        return merge([self.subscriptions[written] for written in forms if written in self.subscriptions])

    def membership(self, group: Group) -> Subscription | None:
        """A subscription to this group, in any form; None if there is none."""
        name, topic_filter = group.names
        forms = (f"{SHARE_PREFIX}{name}/{topic_filter}", *self.replay_forms.get(group.key, ()))
        return next((self.subscriptions[written] for written in forms if written in self.subscriptions), None)

    @property
    def is_durable(self) -> bool:
        """Whether it outlives the process."""
        return self.flow.is_durable

    @property
    def wants_room(self) -> bool:
        """Whether something waits until the client accepts more."""
        return self.recall is not None or bool(self.feeds or self.replays or self.shares) or not self.flow.is_following

    @property
    def will_delay_s(self) -> int:
        """Seconds that the will waits for the client to return."""
        return 0 if self.will is None else self.will.properties.will_delay_interval or 0

    def end_feeds(self) -> None:
        """No retained messages are delivered any more."""
        feeds, self.feeds = self.feeds, None
        for feed in (feeds or {}).values():
            feed.close()

    def cancel_timers(self) -> None:
        """The client is back, or the session is over: cancel its expiry and a delayed will."""
        if self.expiry_timer is not None:
            self.expiry_timer.cancel()
            self.expiry_timer = None
        if self.will_timer is not None:
            self.will_timer.cancel()
            self.will_timer = None


def levels_of(topic_filter: bytes) -> int:
    """How many levels a filter has."""
    return topic_filter.count(b"/") + 1


def _root(subscription: Subscription) -> bytes | tuple[str, bytes]:
    """The key that all forms of a subscription share."""
    group = group_of(subscription)
    return subscription.topic_filter if group is None else group.key


def will_bytes(will: Will | None) -> int:
    """The memory that a large will takes; a small one counts as part of its session."""
    if will is None:
        return 0
    properties = will.properties
    size = _text_bytes(will.topic) + len(will.payload) + len(properties.correlation_data or b"")
    size += _text_bytes(properties.response_topic or "") + _text_bytes(properties.content_type or "")
    pairs = properties.user_properties
    if isinstance(pairs, TextPairs):
        size += len(pairs.wire)
    elif pairs:  # an empty one takes five bytes on the wire and many times that in memory
        size += _PAIR_BYTES * len(pairs) + sum(map(getsizeof, chain.from_iterable(pairs)))
    return size if size > SMALL_WILL_BYTES else 0


def _text_bytes(text: str) -> int:
    """The bytes of its characters in memory: one that is not ASCII makes all of them wider."""
    return getsizeof(text) - _EMPTY_TEXT_BYTES


class SessionTable:
    """All sessions of this node by client id."""

    def __init__(self) -> None:
        self._by_id: dict[str, Session] = {}
        self.durable = 0  # how many of them outlive the process
        self.will_bytes = 0  # of their wills, those that are large

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def get(self, client_id: str) -> Session | None:
        """The session of a client id, connected or not."""
        return self._by_id.get(client_id)

    def add(self, session: Session) -> None:
        """Make it the session of its client id."""
        before = self._by_id.get(session.client_id)
        self.durable += session.is_durable - (before is not None and before.is_durable)
        self._by_id[session.client_id] = session

    def set_will(self, session: Session, will: Will | None) -> None:
        """Set or remove the will of a session."""
        size = will_bytes(will)
        self.will_bytes += size - session.will_bytes
        session.will, session.will_bytes = will, size

    def set_next_will(self, session: Session, will: Will | None) -> None:
        """A client with this will holds the session, or no longer: its bytes count from the start."""
        size = will_bytes(will)
        self.will_bytes += size - session.next_will_bytes
        session.next_will, session.next_will_bytes = will, size

    def adopt_will(self, session: Session, will: Will | None) -> None:
        """The client with this will has its CONNACK: the will is the session's now. The next will is not measured again."""
        self.will_bytes -= session.will_bytes + session.next_will_bytes
        size = session.next_will_bytes if will is session.next_will else will_bytes(will)
        self.will_bytes += size
        session.will, session.will_bytes = will, size
        session.next_will, session.next_will_bytes = None, 0

    def remove(self, session: Session) -> None:
        """Forget it, unless another has taken its place."""
        if self._by_id.get(session.client_id) is session:
            del self._by_id[session.client_id]
            self.durable -= session.is_durable
