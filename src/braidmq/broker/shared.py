"""Shared subscriptions: of a group's members, one gets each message."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal
from zlib import crc32

from braidmq.broker.ports import GroupRow
from braidmq.broker.shared_around import Surroundings
from braidmq.broker.shared_log import GroupLog, SharedFlow, is_lease
from braidmq.lane.flow import Delivery, Flow
from braidmq.lane.log_flow import LogFlow
from braidmq.lane.message import Message
from braidmq.lane.routes import RouteTable, Subscription

Strategy = Literal["round_robin", "random", "sticky", "hash_clientid", "hash_topic"]


class Group:
    """The members of one ``$share/name/filter``.

    A member that is connected and keeps up is preferred. With none such, a recorded message waits in the log; any other goes to a
    member whose queue still takes it, QoS 0 to connected members only. What the chosen one did not acknowledge when it leaves is
    dispatched again (``Groups.redispatch``).
    """

    __slots__ = ("_members", "_next", "_place", "_sticky", "flow", "key", "log", "strategy")

    def __init__(self, key: tuple[str, bytes], strategy: Strategy, around: Surroundings, start: Sequence[int] | None) -> None:
        self.key = key
        self.strategy = strategy
        self.log = GroupLog(self, around, start)
        self.flow = SharedFlow(self.log, around.state, is_durable=False)  # what stands for the group in the routes
        self._members: list[Subscription] = []
        self._place = 0
        self._next = 0
        self._sticky: Subscription | None = None

    def __len__(self) -> int:
        return len(self._members)

    @property
    def names(self) -> tuple[str, str]:
        """The group's own name, and its filter."""
        name, topic_filter = self.key
        return name, topic_filter.decode()

    @property
    def is_durable(self) -> bool:
        """Whether a member's session outlives the process, so that messages for the group must be kept."""
        return any(member.flow.is_durable for member in self._members)

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
        flows: list[LogFlow] = [member.flow for member in self._members if member.flow.channel is None]
        return [flow for flow in flows if flow.queue_messages() or flow.inflight_messages()]

    def on_settled(self, delivery: Delivery) -> None:
        """A member has acknowledged or refused a message, or let go of its packet id."""
        if is_lease(delivery) and delivery.message is not None:
            self.log.settle(delivery.message)

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
        """The member that gets a message that is not read in the log; None if nobody can take it."""
        for member in self.candidates(message, without):
            self.note_choice()
            return member
        for member in self._members:
            if member.flow is not without and min(message.qos, member.qos) > 0 and member.flow.has_place(message):
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


class Groups:
    """All groups of the node; keeps their entries in the route table."""

    def __init__(self, routes: RouteTable, strategy: Strategy, around: Surroundings) -> None:
        self._routes = routes
        self._around = around
        self._groups: dict[tuple[str, bytes], Group] = {}
        self._strategy: Strategy = strategy
        self.members = 0  # of all groups together

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def has(self, name: str, topic_filter: bytes) -> bool:
        """Whether there is such a group."""
        return (name, topic_filter) in self._groups

    def use(self, strategy: Strategy) -> None:
        """Choose members this way from now on, in the groups that are there too."""
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
    ) -> tuple[Subscription, bool]:
        """Make the flow a member of the named group over this filter; its subscription, and whether it is new.

        ``start``: where a group that is made by this begins to read the log; None: at its end.
        """
        key = (name, topic_filter)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, self._strategy, self._around, start)
            self._put_route(group)
        member = Subscription(flow, topic_filter, qos, False, retain_as_published, identifiers, group)
        is_new = group.put(member)
        self.members += is_new
        self._refit(group)
        return member, is_new

    def leave(self, group: Group, flow: Flow) -> None:
        """Take a member out; a group without members is gone."""
        if not group.remove(flow):
            return
        self.members -= 1
        if len(group):
            self._refit(group)
            return
        del self._groups[group.key]
        self._routes.remove(group.key[1], group.flow)
        group.log.end()
        if group.flow.is_durable:
            self._around.forget_row(*group.names)

    def _put_route(self, group: Group) -> None:
        # With whatever QoS and flags a message has: a member's own are applied when it is chosen.
        self._routes.add(Subscription(group.flow, group.key[1], 2, False, True, b"", group))

    def _refit(self, group: Group) -> None:
        """Members have changed: messages for the group must be recorded from now on, or need not be any longer."""
        is_durable = group.is_durable
        if is_durable != group.flow.is_durable:
            self._routes.remove(group.key[1], group.flow)
            group.flow = SharedFlow(group.log, self._around.state, is_durable)
            self._put_route(group)
            if not is_durable:
                group.log.is_kept = False
                self._around.forget_row(*group.names)
        if is_durable:
            self._around.note_change(group.log, at_once=True)

    def relieve_all(self, groups: Iterable[Group]) -> None:
        """A member of these has come."""
        for group in groups:
            self.relieve(group)

    def relieve(self, group: Group) -> None:
        """A member has come: what waits in the log or for those who are away need not wait any longer."""
        group.log.wake()
        for flow in group.waiting_absent():
            if not group.has_ready_member():
                break
            self.redispatch(flow, is_over=False)

    def redispatch(self, flow: LogFlow, is_over: bool) -> int:
        """Give what a leaving member did not acknowledge to others; how many messages.

        QoS 2 that was sent stays with its session and is never given to another [MQTT-4.8.2-4], [MQTT-4.8.2-5]. Recorded messages
        of QoS 1 return to their group. Of others, while the session lives, only a connected member takes over; what nobody takes
        stays where it is.
        """
        returned: dict[GroupLog, list[Message]] = {}

        def is_taken_over(delivery: Delivery) -> bool:
            group: Group | None = delivery.subscription.group
            message = delivery.message
            if group is None or message is None or group.log.is_over:
                return False
            # Of a durable session the disk may know already what was not sent yet.
            if delivery.qos == 2 and (delivery.is_sent or (flow.is_durable and not is_over)):
                return False
            if message.timestamp:
                returned.setdefault(group.log, []).append(message)
                return True
            member = group.choose(message, flow)
            if member is None or (member.flow.channel is None and not is_over):
                return False
            member.flow.deliver_late(message, member, min(message.qos, member.qos), delivery.retain)
            return True

        count = flow.withdraw(is_taken_over)
        if count:
            flow.note_change()
        for log, messages in returned.items():
            log.give_back(messages)
        return count

    def take_back(self, flow: LogFlow) -> None:
        """What this member was to get with QoS 2 could not be written down, so it was not sent: it is the groups' again."""
        returned: dict[GroupLog, list[Message]] = {}

        def is_unsent(delivery: Delivery) -> bool:
            group: Group | None = delivery.subscription.group
            message = delivery.message
            if group is None or message is None or delivery.is_ready or delivery.is_sent or not message.timestamp:
                return False
            if not group.log.is_over:
                returned.setdefault(group.log, []).append(message)
            return True

        if flow.withdraw(is_unsent):
            flow.note_change()
        for log, messages in returned.items():
            log.give_back(messages)

    def restore(self, rows: Iterable[GroupRow]) -> None:
        """Let the groups, whose members are there already, go on from their rows; those without members are forgotten."""
        marks = self._around.state.marks
        for row in rows:
            group = self._groups.get((row.name, row.topic_filter.encode()))
            if group is None:
                self._around.forget_row(row.name, row.topic_filter)
                continue
            positions = [row.positions[shard] if shard < len(row.positions) else mark for shard, mark in enumerate(marks)]
            since = row.since if len(row.since) == len(marks) else ()
            group.log.restore(positions, [place for place in row.outstanding if place[0] < len(marks)], since)
