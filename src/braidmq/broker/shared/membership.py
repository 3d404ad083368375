"""Shared groups on a node that is not home: clients here are members, and the home chooses which of them gets a message.

The home *lends* a message to a member. It is given to the client as soon as its window has room, and *settled* when the client
has acknowledged or refused it (C37). What the client cannot be given is *returned*, and the home gives it to another member; it
does the same with what has no answer when the client's channel ends. A message of QoS 2 that the client may have seen is never
returned (S10): a durable session keeps it, with its cursor; with any other session it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Protocol, cast

from braidmq.broker.ports import Change, GroupRow
from braidmq.broker.shared.group import Group, Groups
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.flows.flow import Flow
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription


class GroupHome(Protocol):
    """The home of all groups, as a node sees it."""

    @property
    def qos_max(self) -> int:
        """The highest QoS with which messages of groups are lent."""

    def join(self, client_id: str, number: int, member: Subscription, name: str, start: Sequence[int] | None) -> list[Change]:
        """Make the client a member, or change how it is one. ``number``: under which the home lends it messages of the group."""

    def leave(self, client_id: str, name: str, topic_filter: bytes) -> list[Change]:
        """The client is no longer a member."""

    def answer(self, channel: int, lease: int, is_settled: bool) -> None:
        """A lease has ended: settled, or returned."""

    def let_go(self, channel: int, lease: int) -> None:
        """The client's channel ends: the home takes the lease back when it hears of that."""


class MemberServices(Protocol):
    """What the broker does for members; `binding.GroupBinding`."""

    @property
    def asks_hooks(self) -> bool:
        """Whether a hook may change or withhold messages for a member."""

    def ask_hooks(self, message: Message, client_id: str) -> Message | None:
        """The message as this member receives it; None if a hook withholds it."""

    def await_member_room(self, member: Membership) -> None:
        """``wake`` it when its client takes more."""

    def write(self, change: Change) -> None:
        """Write a row without waiting for it."""


class Lease:
    """A message that the home has lent to a client of this node; the group of its delivery."""

    __slots__ = ("channel", "member", "memberships", "message", "number", "qos", "retain")

    def __init__(self, memberships: Memberships, member: Membership, channel: int, number: int) -> None:
        self.memberships = memberships
        self.member = member
        self.channel = channel
        self.number = number
        self.message: Message
        self.qos = 0
        self.retain = False

    def on_settled(self, delivery: Delivery) -> None:
        """The client has acknowledged or refused it, or released its packet id."""
        self.memberships.end_lease(self, is_settled=True)


class Membership(Group):
    """What this node knows of a group that one of its clients is a member of."""

    __slots__ = ("client", "is_announced", "number", "start", "subscription", "waiting")

    def __init__(self, key: tuple[str, bytes], number: int, client: LogFlow, start: Sequence[int] | None) -> None:
        self.key = key
        self.number = number
        self.client = client
        self.start = start
        self.is_announced = False  # the home was told of it, as it is now
        self.subscription: Subscription
        self.waiting: deque[Lease] = deque()  # for which the client had no room

    def put(self, member: Subscription) -> bool:
        """Change how the client is a member; the home is told when it is announced."""
        self.subscription = member
        self.is_announced = False
        return False

    def wake(self) -> None:
        """The client may take more."""
        if self.waiting:
            self.waiting[0].memberships.give_waiting(self)


class Memberships(Groups):
    """All memberships of this node's clients; takes the place of `Groups`."""

    is_here = False

    def __init__(self, home: GroupHome, services: MemberServices) -> None:
        self._home = home
        self.qos_max = home.qos_max
        self._members_services = services
        self._numbers = count(1)
        self._by_number: dict[int, Membership] = {}
        self._by_client: dict[Flow, dict[tuple[str, bytes], Membership]] = {}  # by name and filter
        self._leases: dict[tuple[int, int], Lease] = {}  # by channel and number

    @property
    def members(self) -> int:  # type: ignore[override]
        """Memberships of this node's clients."""
        return len(self._by_number)

    def __len__(self) -> int:
        """Groups that have a cursor here: none."""
        return 0

    def __iter__(self) -> Iterator[Group]:
        return iter(())

    def has(self, name: str, topic_filter: bytes) -> bool:
        """Never: only the home knows."""
        return False

    def use(self, strategy: object) -> None:
        """The home has its own."""

    # Members

    def join(
        self,
        name: str,
        flow: Flow,
        topic_filter: bytes,
        qos: int,
        retain_as_published: bool,
        identifiers: bytes,
        start: Sequence[int] | None = None,
        owner: object = None,
    ) -> tuple[Subscription, bool]:
        """Make the flow a member; ``joining`` or ``relieve_all`` must follow."""
        key = name, topic_filter
        of_client = self._by_client.setdefault(flow, {})
        member = of_client.get(key)
        is_new = member is None
        if member is None:
            number = next(self._numbers)
            member = of_client[key] = self._by_number[number] = Membership(key, number, cast("LogFlow", flow), start)
        subscription = Subscription(flow, topic_filter, qos, False, retain_as_published, identifiers, member)
        member.put(subscription)
        return subscription, is_new

    def joining(self, group: Group, is_durable: bool) -> list[Change]:
        """The home must know of the membership before the client does."""
        member = cast("Membership", group)
        return [] if member.is_announced else self._announce(member)

    def _announce(self, member: Membership) -> list[Change]:
        member.is_announced = True
        return self._home.join(member.client.client_id, member.number, member.subscription, member.key[0], member.start)

    def leave(self, group: Group, flow: Flow, *, keeps_row: bool = False) -> None:
        """Take a member out. The home learns from the end of the channel that all memberships of a session have ended."""
        member = cast("Membership", group)
        name, topic_filter = member.key
        if self._by_number.pop(member.number, None) is None:
            return
        of_client = self._by_client[flow]
        del of_client[member.key]
        if not of_client:
            del self._by_client[flow]
        self._return_waiting(member)
        if not flow.is_over:
            for change in self._home.leave(flow.client_id, name, topic_filter):
                self._members_services.write(change)

    def relieve_all(self, groups: Iterable[Group]) -> None:
        """The client of these is there, with a window: the home is told what it does not know."""
        for group in groups:
            for change in self.joining(group, is_durable=False):
                self._members_services.write(change)

    def announce_again(self, is_meant: Callable[[Change], bool]) -> None:
        """A home has restarted, and knows no member. ``is_meant``: whether a change is for that home."""
        for member in list(self._by_number.values()):
            for change in self._announce(member) if member.is_announced else ():
                if is_meant(change):
                    self._members_services.write(change)

    def forget_leases(self, is_lost: Callable[[int], bool]) -> None:
        """A home has restarted: what it had lent is its own again, and what becomes of it here does not matter.

        ``is_lost``: whether that home has lent the lease of this number.
        """
        for key in [each for each in self._leases if is_lost(each[1])]:
            del self._leases[key]
        for member in self._by_number.values():
            member.waiting = deque(lease for lease in member.waiting if not is_lost(lease.number))

    # Leases

    def has_member(self, number: int) -> bool:
        """Whether there is a membership of this number."""
        return number in self._by_number

    def receive(self, channel: int, member_number: int, number: int, message: Message, qos: int, retain: bool) -> None:
        """The home has lent a message to a member of this node; QoS 0 is not answered. ``Lane.flush`` must follow."""
        member = self._by_number.get(member_number)
        if member is None or member.client.channel is None or member.client.is_over:
            if qos:
                self._home.answer(channel, number, False)
            return
        services = self._members_services
        if services.asks_hooks:
            changed = services.ask_hooks(message, member.client.client_id)
            if changed is None:
                if qos:
                    self._home.answer(channel, number, True)
                return
            message = changed
        if not qos:
            member.client.deliver_late(message.unrecorded() if message.timestamp else message, member.subscription, 0, retain)
            return
        lease = self._leases[channel, number] = Lease(self, member, channel, number)
        lease.message, lease.qos, lease.retain = message, qos, retain
        member.waiting.append(lease)
        if len(member.waiting) == 1:
            self.give_waiting(member)

    def give_waiting(self, member: Membership) -> None:
        """Give the client what it has room for."""
        waiting, flow = member.waiting, member.client
        while waiting:
            lease = waiting[0]
            expiry = lease.message.seconds_left()
            if expiry == 0:
                waiting.popleft()
                flow.state.drop_expired(flow.client_id, lease.message.topic)
                self.end_lease(lease, is_settled=True)
                continue
            before = flow.inflight_messages()
            if not flow.take(lease.message, self._delivered_as(lease), lease.qos, lease.retain, expiry):
                self._members_services.await_member_room(member)
                return
            waiting.popleft()
            if flow.inflight_messages() == before:  # too large for this client: it counts as acknowledged
                self.end_lease(lease, is_settled=True)

    def _delivered_as(self, lease: Lease) -> Subscription:
        to = lease.member.subscription
        return Subscription(to.flow, to.topic_filter, to.qos, False, to.retain_as_published, to.identifiers, lease)

    def end_lease(self, lease: Lease, is_settled: bool) -> None:
        """Tell the home, unless the lease was one of an earlier home."""
        if self._leases.get((lease.channel, lease.number)) is lease:
            del self._leases[lease.channel, lease.number]
            self._home.answer(lease.channel, lease.number, is_settled)

    def _let_go(self, lease: Lease) -> None:
        if self._leases.get((lease.channel, lease.number)) is lease:
            del self._leases[lease.channel, lease.number]
            self._home.let_go(lease.channel, lease.number)

    def _return_waiting(self, member: Membership) -> None:
        while member.waiting:
            self.end_lease(member.waiting.popleft(), is_settled=False)

    def redispatch(self, flow: LogFlow, is_over: bool, packet_ids: list[int] | None = None) -> int:
        """The client leaves: return what it did not acknowledge, except QoS 2 that it may have seen.

        All of it at once, whatever the ``packet_ids``: the home must have the answers before it hears that the channel has ended.
        """
        for member in self._by_client.get(flow, {}).values():
            while member.waiting:
                self._let_go(member.waiting.popleft())

        def is_returned(delivery: Delivery) -> bool:
            lease = delivery.subscription.group
            if not isinstance(lease, Lease) or (delivery.qos == 2 and flow.is_durable and not is_over):
                return False
            if delivery.qos == 2 and (delivery.is_sent or delivery.is_released):  # it ends with its session
                self.end_lease(lease, is_settled=True)
            else:
                self._let_go(lease)
            return True

        return self._withdraw(flow, None, is_returned)

    def take_back(self, flow: LogFlow, packet_ids: list[int]) -> None:
        """What this member was to get with QoS 2 could not be written down, so it was not sent: it is the groups' again."""

        def is_unsent(delivery: Delivery) -> bool:
            lease = delivery.subscription.group
            if not isinstance(lease, Lease) or delivery.message is None or delivery.is_ready or delivery.is_sent:
                return False
            self.end_lease(lease, is_settled=False)
            return True

        self._withdraw(flow, packet_ids, is_unsent)

    def _withdraw(self, flow: LogFlow, packet_ids: list[int] | None, is_unwanted: Callable[[Delivery], bool]) -> int:
        count = flow.withdraw(is_unwanted) if packet_ids is None else flow.withdraw_inflight(packet_ids, is_unwanted)
        if count:
            flow.note_change()
        return count

    def restore(self, rows: Iterable[GroupRow]) -> list[GroupRow]:
        """Nothing: the home restores groups."""
        return []

    def forget(self, rows: Iterable[GroupRow]) -> None:
        """Nothing, likewise."""
