"""Carries out the row operations of nodes: through the core's own storage, and only for clients that their channel owns."""

from __future__ import annotations

from typing import NamedTuple, Protocol, assert_never

from braidmq.base.errors import BraidError, Corruption, ProtocolViolation, UsageError
from braidmq.broker.ports import (
    RELEASED,
    SENT,
    Change,
    CursorRow,
    GroupRow,
    SessionRow,
    Storage,
    StoredMessage,
    SubscriptionRow,
)
from braidmq.cluster.protocol.operations import (
    BadOperation,
    JoinGroup,
    LeaveGroup,
    Operation,
    PutCursor,
    PutDelayed,
    PutGroup,
    PutReceived,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    ReleaseExclusive,
    ReleaseGuest,
    RemoveGroup,
    RemoveReceived,
    RemoveRetained,
    RemoveSession,
    RemoveSubscription,
    RemoveWill,
    SessionOperation,
    TakeExclusive,
    decode_will,
    is_of_guest,
)
from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import Will
from braidmq.mqtt.topics import SHARE_PREFIX, parse_subscription
from braidmq.storage.rows.messages import MessageRows


class NotOwned(BraidError):
    """An operation is about a client that its channel does not own: refuse its entry."""


class NotFree(BraidError):
    """Another client has the exclusive topic, or the client has too much: refuse the entry."""


# What the home does once the rows are committed


class SessionChanged(NamedTuple):
    """The session's own row was set."""

    row: SessionRow


class SubscriptionChanged(NamedTuple):
    """A subscription was set, or removed if ``row`` is None: the durable routes follow."""

    client_id: str
    written: str
    row: SubscriptionRow | None


class WillChanged(NamedTuple):
    """The will was set or removed."""

    client_id: str
    will: Will | None


class SessionGone(NamedTuple):
    """All rows of the session were removed."""

    client_id: str


class RetainedSent(NamedTuple):
    """A retained message is to be set, or removed if it has no payload: in the order of the block's messages."""

    stored: StoredMessage


class DelayedAdded(NamedTuple):
    """A delayed message was stored; ``row_id`` and ``due`` of ``stored`` are set."""

    stored: StoredMessage


class GroupChanged(NamedTuple):
    """The row of a group was set, or removed if ``row`` is None."""

    name: str
    topic_filter: str
    row: GroupRow | None


class MemberJoined(NamedTuple):
    """A client is a member of a shared group."""

    asked: JoinGroup


class MemberLeft(NamedTuple):
    """A client is no longer a member of a shared group."""

    asked: LeaveGroup


class GuestReleased(NamedTuple):
    """The channel of a guest has ended."""

    asked: ReleaseGuest


Effect = (
    SessionChanged
    | SubscriptionChanged
    | WillChanged
    | SessionGone
    | RetainedSent
    | DelayedAdded
    | GroupChanged
    | MemberJoined
    | MemberLeft
    | GuestReleased
)


class SessionPort(Protocol):
    """What the home's sessions have to say about operations before they are written; `sessions.HomeSessions`."""

    def take_over(self, client_id: str, cursor: CursorRow) -> list[Change]:
        """Rows of shared groups to write with a session's cursor (see `lending`)."""

    def take_exclusive(self, client_id: str, topic_filter: bytes) -> bool:
        """Give an exclusive topic to a client; False if another one has it."""

    def release_exclusive(self, client_id: str, topic_filter: bytes) -> None:
        """Take an exclusive topic from a client."""

    def may_join(self, asked: JoinGroup) -> bool:
        """Whether a client may be a member; False if too many groups that it has made read the past."""


class TopicPort(Protocol):
    """Exclusive topics, if there are several cores; `exclusive.ExclusiveOnNode`."""

    def is_home_of(self, topic: bytes) -> bool:
        """Whether this core decides about the topic."""

    def take_topic(self, asked: TakeExclusive) -> bool:
        """Give a topic to a client of the node; False if it cannot have it."""

    def release_topic(self, asked: ReleaseExclusive) -> None:
        """A client of the node gives a topic up."""


class GuestPort(Protocol):
    """Members of shared groups whose client ids other cores decide about; `guests.Guests`."""

    def may_be(self, client_id: str) -> bool:
        """Whether another core decides about the client id."""

    def may_join(self, asked: JoinGroup) -> bool:
        """As for `SessionPort`."""


class AppliedRows(NamedTuple):
    """Changes to write as one, and what to do once they are committed, in order."""

    changes: list[Change]
    effects: list[Effect]


class HomeRows:
    """Makes storage changes of operations. Nothing is written here."""

    def __init__(
        self,
        storage: Storage,
        messages: MessageRows | None = None,
        live: SessionPort | None = None,
        guests: GuestPort | None = None,
        topics: TopicPort | None = None,
    ) -> None:
        self._live = live
        self._topics = topics
        self._guests = guests
        self._sessions = storage.sessions
        self._delayed = storage.delayed
        self._groups = storage.groups
        self._messages = messages or MessageRows()

    def apply(self, operations: list[Operation], client_id: str | None) -> AppliedRows:
        """Changes and effects of one entry's operations, all or none.

        ``client_id``: the client that the entry's channel owns; None for the node's own entries, which may change no session.
        Raises NotOwned if an operation is about another client, NotFree if it asks for what another one has, BadOperation if a
        row is not valid.
        """
        changes: list[Change] = []
        effects: list[Effect] = []
        for each in operations:
            try:
                more = self._apply(each, client_id, effects)
            except (UsageError, Corruption) as problem:
                raise BadOperation(f"{type(each).__name__} cannot be carried out: {problem}") from None
            changes += more
        return AppliedRows(changes, effects)

    def _apply(self, operation: Operation, client_id: str | None, effects: list[Effect]) -> list[Change]:
        match operation:
            case PutRetained(value):
                stored = self._messages.message_of(value, "a retained message")
                _check_publisher(stored, client_id)
                effects.append(RetainedSent(stored))
                return []
            case RemoveRetained(topic):
                _check_topic(topic)
                effects.append(RetainedSent(StoredMessage(Message(topic, b"", 0, True, ""), None)))
                return []
            case PutDelayed(value, due):
                stored = self._messages.message_of(value, "a delayed message")
                _check_publisher(stored, client_id)
                stored.due = due
                stored.row_id, change = self._delayed.put(stored.message, stored.user_name, due)
                effects.append(DelayedAdded(stored))
                return [change]
            case PutGroup(row):
                effects.append(GroupChanged(row.name, row.topic_filter, row))
                return [self._groups.put(row)]
            case RemoveGroup(name, topic_filter):
                effects.append(GroupChanged(name, topic_filter, None))
                return [self._groups.remove(name, topic_filter)]
            case JoinGroup() | LeaveGroup() | ReleaseGuest() if is_of_guest(operation):
                return self._apply_to_guest(operation, client_id, effects)
            case TakeExclusive() | ReleaseExclusive() if operation.channel:
                return self._apply_to_topic(operation, client_id)
            case ReleaseGuest():
                raise AssertionError("it is of a guest")
            case _:
                if client_id is None or operation.client_id != client_id:
                    owner_text = "no client" if client_id is None else repr(client_id)
                    raise NotOwned(f"{type(operation).__name__} of {operation.client_id!r} came from the channel of {owner_text}")
                return self._apply_to_session(operation, effects)

    def _apply_to_guest(
        self, operation: JoinGroup | LeaveGroup | ReleaseGuest, client_id: str | None, effects: list[Effect]
    ) -> list[Change]:
        guests = self._guests
        if client_id is not None or guests is None or not guests.may_be(operation.client_id):
            raise NotOwned(f"{type(operation).__name__}: {operation.client_id!r} cannot be a guest")
        match operation:
            case JoinGroup():
                _check_join(operation)
                if not guests.may_join(operation):
                    raise NotFree("too many groups of this client read the past")
                effects.append(MemberJoined(operation))
            case LeaveGroup():
                effects.append(MemberLeft(operation))
            case ReleaseGuest():
                effects.append(GuestReleased(operation))
        return []

    def _apply_to_topic(self, operation: TakeExclusive | ReleaseExclusive, client_id: str | None) -> list[Change]:
        _check_topic(operation.topic_filter)
        topics = self._topics
        if client_id is not None or topics is None or not topics.is_home_of(operation.topic_filter):
            raise NotOwned(f"{type(operation).__name__}: another core decides about the topic")
        if isinstance(operation, ReleaseExclusive):
            topics.release_topic(operation)
        elif not topics.take_topic(operation):
            raise NotFree(f"{operation.client_id!r} cannot have {operation.topic_filter.decode()!r}")
        return []

    def _apply_to_session(self, operation: SessionOperation, effects: list[Effect]) -> list[Change]:
        sessions = self._sessions
        match operation:
            case PutSession(row):
                effects.append(SessionChanged(row))
                return [sessions.put_session(row)]
            case PutSubscription(client_id, subscription):
                _check_qos(subscription.qos)
                effects.append(SubscriptionChanged(client_id, subscription.written, subscription))
                return [sessions.put_subscription(client_id, subscription)]
            case RemoveSubscription(client_id, written):
                effects.append(SubscriptionChanged(client_id, written, None))
                return [sessions.remove_subscription(client_id, written)]
            case PutCursor(client_id, cursor):
                for each in cursor.inflight:
                    _check_qos(each.qos)
                    if each.state not in (SENT, RELEASED):
                        raise BadOperation(f"a message in flight has the unknown state {each.state}")
                taken = [] if self._live is None else self._live.take_over(client_id, cursor)
                return [*taken, sessions.put_cursor(client_id, cursor)]
            case PutWill(client_id, value):
                will = decode_will(value)
                if will is None:
                    raise BadOperation("a will is empty")
                effects.append(WillChanged(client_id, will))
                return [sessions.put_will(client_id, will)]
            case RemoveWill(client_id):
                effects.append(WillChanged(client_id, None))
                return [sessions.remove_will(client_id)]
            case PutReceived(client_id, packet_id):
                return [sessions.put_received(client_id, packet_id)]
            case RemoveReceived(client_id, packet_id):
                return [sessions.remove_received(client_id, packet_id)]
            case JoinGroup():
                _check_join(operation)
                if self._live is not None and not self._live.may_join(operation):
                    raise NotFree("too many groups of this client read the past")
                effects.append(MemberJoined(operation))
                return []
            case LeaveGroup():
                effects.append(MemberLeft(operation))
                return []
            case TakeExclusive(client_id, topic_filter):
                _check_topic(topic_filter)
                if self._live is not None and not self._live.take_exclusive(client_id, topic_filter):
                    raise NotFree(f"another client has {topic_filter.decode()!r}")
                return []
            case ReleaseExclusive(client_id, topic_filter):
                if self._live is not None:
                    self._live.release_exclusive(client_id, topic_filter)
                return []
            case RemoveSession(client_id, filters, received):
                effects.append(SessionGone(client_id))
                return self._remove_session(client_id, set(filters), set(received))
            case _:
                assert_never(operation)

    def _remove_session(self, client_id: str, written: set[str], received: set[int]) -> list[Change]:
        """Remove what the node knows of and what is stored beside it: a row without its session would be corruption."""
        stored = self._sessions.load_one(client_id)
        if stored is not None:
            written.update(each.written for each in stored.subscriptions)
            received.update(stored.received)
        return self._sessions.remove_session(client_id, sorted(written), sorted(received))


def _check_publisher(stored: StoredMessage, client_id: str | None) -> None:
    publisher = stored.message.publisher
    if publisher != (client_id or ""):
        raise NotOwned(f"a message of {publisher!r} came from the channel of {client_id!r}")


def _check_qos(qos: int) -> None:
    if not 0 <= qos <= 2:
        raise BadOperation(f"{qos} is not a QoS")


def _check_join(asked: JoinGroup) -> None:
    _check_qos(asked.qos)
    try:
        target = parse_subscription(f"{SHARE_PREFIX}{asked.name}/{asked.topic_filter}")
    except ProtocolViolation as violation:
        raise BadOperation(f"a membership in a group that cannot exist: {violation.detail}") from None
    if (target.group, target.topic_filter) != (asked.name, asked.topic_filter):
        raise BadOperation(f"a membership in a group that cannot exist: {asked.name!r}")


def _check_topic(topic: bytes) -> None:
    try:
        topic.decode()
    except UnicodeDecodeError:
        raise BadOperation("a topic is not UTF-8") from None
