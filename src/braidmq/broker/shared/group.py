"""Shared subscriptions: each message goes to one member of a group."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal
from zlib import crc32

from braidmq.broker.ports import Change, GroupRow
from braidmq.broker.reading.fetch import Place
from braidmq.broker.shared.cursor import GroupCursor
from braidmq.broker.shared.leases import flow_of, is_lease
from braidmq.broker.shared.ports import GroupRoutes, GroupServices
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.flows.flow import Flow
from braidmq.lane.flows.group_flow import GroupFlow
from braidmq.lane.flows.lent_flow import LentFlow
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.delivery_rules import copy_qos, copy_retain
from braidmq.lane.routing.subscription import Subscription

_RELIEF_WORK = 1000  # members and messages that are looked at in one go when a member comes: about a millisecond

Lease = tuple[Place, Message | None]  # without the message, which is in the log, if it is not in memory
OnMember = Callable[[tuple[str, bytes], Flow, bool], None]  # a group's name and filter, a member, and whether it is one now
Strategy = Literal["round_robin", "random", "sticky", "hash_clientid", "hash_topic"]


class Group:
    """The members of one ``$share/name/filter``.

    A member that is connected and keeps up is preferred. With none such, a recorded message waits in the log; any other goes to a
    member whose queue still takes it, QoS 0 to connected members only. What the chosen one did not acknowledge when it leaves is
    dispatched again (``Groups.redispatch``).
    """

    __slots__ = ("_members", "_next", "_place", "_sticky", "flow", "key", "log", "strategy")

    def __init__(
        self,
        key: tuple[str, bytes],
        strategy: Strategy,
        services: GroupServices,
        start: Sequence[int] | None,
        owner: object = None,
    ) -> None:
        self.key = key
        self.strategy = strategy
        self.log = GroupCursor(self, services, start, owner)
        self.flow = GroupFlow(key[0], services.state, self.log, is_durable=False)  # what stands for the group in the routes
        self.flow.is_following = start is None
        self._members: list[Subscription] = []
        self._place = 0
        self._next = 0
        self._sticky: Subscription | None = None

    def __len__(self) -> int:
        return len(self._members)

    def remains(self) -> Group:
        """What is left of a group that is over, for its log: its names and its flow, and no members."""
        rest = Group.__new__(Group)
        rest.key, rest.strategy, rest.flow = self.key, self.strategy, self.flow
        rest._members, rest._place, rest._next, rest._sticky = [], 0, 0, None
        return rest

    @property
    def names(self) -> tuple[str, str]:
        """The group's own name, and its filter."""
        name, topic_filter = self.key
        return name, topic_filter.decode()

    @property
    def is_durable(self) -> bool:
        """Whether a member outlives the process, so that messages for the group must be kept: its session, or its node (C25)."""
        return any(member.flow.is_durable or isinstance(member.flow, LentFlow) for member in self._members)

    def put(self, member: Subscription) -> bool:
        """Add or replace the member of this flow; True if it is new."""
        for i, other in enumerate(self._members):
            if other.flow is member.flow:
                self._members[i] = member
                if self._sticky is other:
                    self._sticky = member
                return False
        self._members.append(member)
        return True

    def remove(self, flow: Flow) -> bool:
        """Take the member of this flow out; False if there was none."""
        for i, member in enumerate(self._members):
            if member.flow is flow:
                del self._members[i]
                if self._sticky is member:
                    self._sticky = None
                return True
        return False

    def members(self) -> Iterable[Subscription]:
        """All of them."""
        return tuple(self._members)

    def has_member(self, flow: Flow) -> bool:
        """Whether this flow is one of its members'."""
        return any(member.flow is flow for member in self._members)

    def clients(self) -> list[Flow]:
        """Members that are connected."""
        return [member.flow for member in self._members if member.flow.channel is not None]

    def has_client(self) -> bool:
        """Whether a member is connected."""
        return any(member.flow.channel is not None for member in self._members)

    def has_ready_member(self) -> bool:
        """Whether a member is connected and keeps up."""
        return any(member.flow.channel is not None and not member.flow.is_congested() for member in self._members)

    def waiting_absent(self) -> list[LogFlow]:
        """Members that are not connected and have messages, of this group or not."""
        flows = [flow_of(member) for member in self._members if member.flow.channel is None]
        # A node that is not connected still has what its clients were lent.
        return [flow for flow in flows if (flow.queue_messages() or flow.inflight_messages()) and not isinstance(flow, LentFlow)]

    def on_settled(self, delivery: Delivery) -> None:
        """A member has acknowledged or refused a message, or its packet id was released."""
        if is_lease(delivery):
            self.log.settle(delivery.place())

    def candidates(self, message: Message, without: Flow | None = None) -> Iterator[Subscription]:
        """Members that are connected and keep up, the one whose turn it is first; say ``note_choice`` when one gets it."""
        members = self._members
        count = len(members)
        start = self._start(message, count) if count else 0
        for i in range(count):
            member = members[(start + i) % count]
            flow: Flow = member.flow
            flow.state.work += 1  # passing over those who are away takes time too
            if flow is not without and flow.channel is not None and not flow.is_congested():
                self._place = (start + i) % count
                yield member

    def note_choice(self) -> None:
        """The last of the ``candidates`` was given a message."""
        self._sticky = self._members[self._place]
        self._next = self._place + 1

    def choose(self, message: Message, without: Flow | None = None) -> Subscription | None:
        """Select the member for a live message; None if no member can accept it."""
        for member in self.candidates(message, without):
            self.note_choice()
            return member
        for member in self._members:
            if member.flow is not without and copy_qos(message, member) > 0 and member.flow.has_place(message):
                return member
        return None

    def _start(self, message: Message, count: int) -> int:
        match self.strategy:
            case "round_robin":
                return self._next % count
            case "random":
                return random.randrange(count)  # spreading load is no secret
            case "sticky":
                sticky = self._sticky
                return self._members.index(sticky) if sticky is not None and sticky in self._members else self._next % count
            case "hash_clientid":
                return crc32(message.publisher.encode()) % count
            case "hash_topic":
                return crc32(message.topic) % count


def group_of(subscription: Subscription) -> Group | None:
    """The group that a subscription makes its session a member of; None if it is the session's alone."""
    group = subscription.group
    assert group is None or isinstance(group, Group)
    return group


class Groups:
    """All groups of the node; keeps their entries in the route table."""

    is_here = True  # the node itself chooses among their members
    qos_max = 2  # with which members can be given messages

    def __init__(self, routes: GroupRoutes, strategy: Strategy, services: GroupServices) -> None:
        self._routes = routes
        self._services = services
        self._groups: dict[tuple[str, bytes], Group] = {}
        self._strategy: Strategy = strategy
        self.members = 0  # of all groups together
        self._on_member: OnMember | None = None

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def has(self, name: str, topic_filter: bytes) -> bool:
        """Whether there is such a group."""
        return (name, topic_filter) in self._groups

    def find(self, key: tuple[str, bytes]) -> Group | None:
        """The group of this name and filter; None if there is none."""
        return self._groups.get(key)

    def watch_members(self, callback: OnMember) -> None:
        """Call back for each member that there is, and whenever one joins or leaves."""
        self._on_member = callback
        for group in self._groups.values():
            for member in group.members():
                callback(group.key, member.flow, True)

    def use(self, strategy: Strategy) -> None:
        """Set the strategy, for existing groups as well."""
        self._strategy = strategy
        for group in self._groups.values():
            group.strategy = strategy

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
        """Make the flow a member of the named group over this filter; its subscription, and whether it is new.

        A new group begins to read the log at ``start`` (None: at its end), and its reading counts for ``owner``.
        """
        key = (name, topic_filter)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, self._strategy, self._services, start, owner)
            self._put_route(group)
        member = Subscription(flow, topic_filter, qos, False, retain_as_published, identifiers, group)
        is_new = group.put(member)
        self.members += is_new
        if is_new and self._on_member is not None:
            self._on_member(key, flow, True)
        self._refit(group)
        return member, is_new

    def joining(self, group: Group, is_durable: bool) -> list[Change]:
        """What must be written before a new member is told of its membership. ``is_durable``: its session is."""
        return [self._services.row_of(group.log)] if is_durable and not group.log.is_kept else []

    def leave(self, group: Group, flow: Flow, *, keeps_row: bool = False) -> None:
        """Take a member out; a group without members is gone.

        ``keeps_row``: the member goes to another node, which continues from the row as it is now.
        """
        was_durable = group.flow.is_durable
        if keeps_row and was_durable and group.has_member(flow):
            self._services.write_row(group.log)
        if not group.remove(flow):
            return
        self.members -= 1
        if self._on_member is not None:
            self._on_member(group.key, flow, False)
        if len(group):
            self._refit(group, keeps_row)
            return
        del self._groups[group.key]
        self._routes.remove(group.key[1], group.flow)
        group.log.end()
        if was_durable and not keeps_row:
            self._services.forget_row(*group.names)

    def _put_route(self, group: Group) -> None:
        # With whatever QoS and flags a message has: a member's own are applied when it is chosen.
        self._routes.add(Subscription(group.flow, group.key[1], 2, False, True, b"", group))

    def _refit(self, group: Group, keeps_row: bool = False) -> None:
        """Members have changed: messages for the group must be recorded from now on, or need not be any longer."""
        is_durable = group.is_durable
        if is_durable != group.flow.is_durable:
            before = group.flow
            group.flow = GroupFlow(group.key[0], self._services.state, group.log, is_durable)
            group.flow.succeed(before)
            self._put_route(group)  # first: other nodes must not take the filter for gone
            self._routes.remove(group.key[1], before)
            if not is_durable:
                group.log.is_kept = False
                if not keeps_row:
                    self._services.forget_row(*group.names)
        if is_durable:
            self._services.note_change(group.log, at_once=True)

    def relieve_all(self, groups: Iterable[Group]) -> None:
        """A member of these has come: what waits in the log or for those who are away need not wait any longer.

        If there are many it is done in slices, each in a turn of its own.
        """
        waiting = deque(groups)
        if waiting:
            self._relieve(waiting, set())

    def _relieve(self, waiting: deque[Group], relieved: set[LogFlow]) -> None:
        """``relieved``: absent members that have been looked at; each once, for whatever group its messages are."""
        work = 0
        while waiting and work < _RELIEF_WORK:
            group = waiting.popleft()
            group.log.wake()
            work += len(group)
            for flow in group.waiting_absent():
                if flow in relieved:
                    continue
                if not group.has_ready_member():
                    break
                relieved.add(flow)
                work += flow.queue_messages() + flow.inflight_messages()
                self.redispatch(flow, is_over=False)
        if waiting:
            self._services.soon(waiting[0].log, partial(self._relieve, waiting, relieved))

    def redispatch(self, flow: LogFlow, is_over: bool, packet_ids: list[int] | None = None) -> int:
        """Give what a leaving member did not acknowledge to others; how many messages. ``packet_ids``: of those in flight alone.

        QoS 2 that was sent stays with its session and is never given to another [MQTT-4.8.2-4], [MQTT-4.8.2-5]. Recorded messages
        of QoS 1 return to their group. Of others, while the session lives, only a connected member takes over; the rest
        stays where it is.
        """
        returned: dict[GroupCursor, list[Lease]] = {}

        def is_taken_over(delivery: Delivery) -> bool:
            group = group_of(delivery.subscription)
            message = delivery.message
            if group is None or delivery.is_released or group.log.is_over:
                return False
            # Of a durable session the disk may know already what was not sent yet.
            if delivery.qos == 2 and (delivery.is_sent or (flow.is_durable and not is_over)):
                return False
            place = delivery.place()
            if place[1]:
                returned.setdefault(group.log, []).append((place, message))
                return True
            if message is None:
                return False
            member = group.choose(message, flow)
            if member is None or (member.flow.channel is None and not is_over):
                return False
            member.flow.deliver_late(message, member, copy_qos(message, member), copy_retain(message, member))
            return True

        count = flow.withdraw(is_taken_over) if packet_ids is None else flow.withdraw_inflight(packet_ids, is_taken_over)
        if count:
            flow.note_change()
        for log, leases in returned.items():
            log.give_back(leases)
        self._services.note_left()
        return count

    def take_back(self, flow: LogFlow, packet_ids: list[int]) -> None:
        """What this member was to get with QoS 2 could not be written down, so it was not sent: it is the groups' again.

        Only these packet ids: the disk may have others as the session's already, and the groups no longer.
        """
        returned: dict[GroupCursor, list[Lease]] = {}

        def is_unsent(delivery: Delivery) -> bool:
            group = group_of(delivery.subscription)
            message = delivery.message
            if group is None or message is None or delivery.is_ready or delivery.is_sent or not message.timestamp:
                return False
            if not group.log.is_over:
                returned.setdefault(group.log, []).append((delivery.place(), message))
            return True

        if flow.withdraw_inflight(packet_ids, is_unsent):
            flow.note_change()
        for log, leases in returned.items():
            log.give_back(leases)

    def restore(self, rows: Iterable[GroupRow]) -> list[GroupRow]:
        """Let the groups, whose members are there already, go on from their rows; returns those of groups without members."""
        orphans: list[GroupRow] = []
        marks = self._services.state.marks
        for row in rows:
            group = self._groups.get((row.name, row.topic_filter.encode()))
            if group is None:
                orphans.append(row)
                continue
            positions = [row.positions[shard] if shard < len(row.positions) else mark for shard, mark in enumerate(marks)]
            since = row.since if len(row.since) == len(marks) else ()
            group.log.restore(positions, [place for place in row.outstanding if place[0] < len(marks)], since)
        return orphans

    def forget(self, rows: Iterable[GroupRow]) -> None:
        """Remove the rows of groups that have no members."""
        for row in rows:
            if (row.name, row.topic_filter.encode()) not in self._groups:
                self._services.forget_row(row.name, row.topic_filter)
