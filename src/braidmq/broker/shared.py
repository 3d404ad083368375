"""Shared subscriptions: of a group's members, one gets each message."""

from __future__ import annotations

import random
from typing import Literal
from zlib import crc32

from braidmq.lane.flow import Delivery, Flow
from braidmq.lane.message import Message
from braidmq.lane.routes import RouteTable, Subscription

Strategy = Literal["round_robin", "random", "sticky", "hash_clientid", "hash_topic"]


class Group:
    """The members of one ``$share/name/filter``.

    A member that is connected and keeps up is preferred; with none such, a member whose queue still takes the message; QoS
    0 goes to connected members only. What the chosen one did not acknowledge when it leaves is dispatched again
    (``Groups.redispatch``).
    """

    __slots__ = ("_members", "_next", "_sticky", "key", "strategy")

    def __init__(self, key: tuple[str, bytes], strategy: Strategy) -> None:
        self.key = key
        self.strategy = strategy
        self._members: list[Subscription] = []
        self._next = 0
        self._sticky: Subscription | None = None

    def __len__(self) -> int:
        return len(self._members)

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

    def has_ready_member(self) -> bool:
        """Whether a member is connected and keeps up."""
        return any(member.flow.channel is not None and not member.flow.is_congested() for member in self._members)

    def waiting_absent(self) -> list[Flow]:
        """Members that are not connected and have messages, of this group or not."""
        flows: list[Flow] = [member.flow for member in self._members if member.flow.channel is None]
        return [flow for flow in flows if flow.queue_messages() or flow.inflight_messages()]

    def choose(self, message: Message, without: Flow | None = None) -> Subscription | None:
        """The member that gets the message; None if nobody can take it."""
        members = self._members
        count = len(members)
        if not count:
            return None
        start = self._start(message, count)
        fallback: Subscription | None = None
        for i in range(count):
            member = members[(start + i) % count]
            flow: Flow = member.flow
            if flow is without:
                continue
            if flow.channel is not None and not flow.is_congested():
                self._next = (start + i + 1) % count
                self._sticky = member
                flow.state.work += i  # passing over those who are away takes time too
                return member
            if fallback is None and min(message.qos, member.qos) > 0 and flow.has_place(message):
                fallback = member
        members[0].flow.state.work += count
        return fallback

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

    def __init__(self, routes: RouteTable, strategy: Strategy) -> None:
        self._routes = routes
        self._groups: dict[tuple[str, bytes], Group] = {}
        self._strategy: Strategy = strategy
        self.members = 0  # of all groups together

    def __len__(self) -> int:
        return len(self._groups)

    def use(self, strategy: Strategy) -> None:
        """Choose members this way from now on, in the groups that are there too."""
        self._strategy = strategy
        for group in self._groups.values():
            group.strategy = strategy

    def join(
        self, name: str, flow: Flow, topic_filter: bytes, qos: int, retain_as_published: bool, identifiers: bytes
    ) -> tuple[Subscription, bool]:
        """Make the flow a member of the named group over this filter; its subscription, and whether it is new."""
        key = (name, topic_filter)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, self._strategy)
            self._routes.add(Subscription(None, topic_filter, 2, group=group))
        member = Subscription(flow, topic_filter, qos, False, retain_as_published, identifiers, group)
        is_new = group.put(member)
        self.members += is_new
        return member, is_new

    def leave(self, group: Group, flow: Flow) -> None:
        """Take a member out; a group without members is gone."""
        if not group.remove(flow):
            return
        self.members -= 1
        if not len(group):
            del self._groups[group.key]
            self._routes.remove(group.key[1], group)

    def relieve(self, group: Group) -> None:
        """A member has come: what waits for those who are away need not wait any longer."""
        for flow in group.waiting_absent():
            if not group.has_ready_member():
                break
            self.redispatch(flow, is_over=False)

    def redispatch(self, flow: Flow, is_over: bool) -> int:
        """Give what a leaving member did not acknowledge to others; how many messages.

        QoS 2 that was sent stays with its session and is never given to another [MQTT-4.8.2-4], [MQTT-4.8.2-5]. While the
        session lives, only a connected member takes over; what nobody takes stays where it is.
        """

        def is_taken_over(delivery: Delivery) -> bool:
            group: Group | None = delivery.subscription.group
            message = delivery.message
            if group is None or message is None or (delivery.qos == 2 and delivery.is_sent):
                return False
            member = group.choose(message, flow)
            if member is None or (member.flow.channel is None and not is_over):
                return False
            member.flow.deliver_late(message, member, min(message.qos, member.qos), delivery.retain)
            return True

        return flow.withdraw(is_taken_over)
