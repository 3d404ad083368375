"""Shared groups at their home: lends messages to members on nodes, and takes them back.

A client of a node has one flow here for all its groups (`LentFlow`). The groups treat it as a member of their own. From the grant
of a client id to the first word of its node, the client's memberships are *expected*: the groups go on, and lend it nothing.

A lease of QoS 1 is the group's until the node says that it is settled. One of QoS 2 is

- the session's, from the cursor that has it, if the session is durable: the cursor and the group's row are in one batch, and the
  node sends PUBLISH when that is on disk (S10);
- no longer the group's from before it is lent, if the session ends with its connection (`broker.shared.reservations`).

When a channel ends, its node has answered for all that its client may have seen, and the rest goes back to the groups. When a
node dies, all of QoS 1 does, and what was lent to durable sessions with QoS 2 and is not in their cursors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from braidmq.broker.ports import Change, CursorRow
from braidmq.broker.reading.fetch import Place
from braidmq.broker.reading.replay import REPLAYS_MAX
from braidmq.broker.session.restoration import Restoration
from braidmq.broker.shared.binding import GroupBinding
from braidmq.broker.shared.cursor import GroupCursor
from braidmq.broker.shared.group import Group, Groups, Lease, group_of
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.lease_frames import SETTLED, LentMessage, encode_lease
from braidmq.cluster.protocol.operations import JoinGroup
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.flows.lent_flow import LentFlow, LentOutlet
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State
from braidmq.lane.records.records import encode_record
from braidmq.lane.routing.subscription import Subscription
from braidmq.net.proto_v1 import LeaseStatement

LENT_BYTES_MAX: Final = 1024 * 1024  # to one client, if they are more than one message
_Key = tuple[str, bytes]  # name and filter of a group
GuestKey = tuple[Member, int]  # node and channel of a guest
ClientKey = str | GuestKey  # a client by its id, if this core decides about that


class LentClient:
    """The memberships of a client that is connected to a node."""

    __slots__ = ("channel", "expected", "flow", "groups", "node", "numbers", "owned", "replaying", "unowned", "window")

    def __init__(self, client_id: str, node: Member, channel: int, state: State) -> None:
        self.node = node
        self.channel = channel
        self.flow = LentFlow(client_id, state, LENT_BYTES_MAX, self)
        self.groups: dict[_Key, Group] = {}
        self.numbers: dict[_Key, int] = {}  # under which the node knows them
        self.expected: set[_Key] = set()  # memberships that the node has not spoken of
        self.window = 1
        self.unowned: dict[Place, int] = {}  # QoS 2 leases to a durable session whose cursor does not have them, by place
        self.owned: set[int] = set()  # those that it has
        self.replaying: set[_Key] = set()  # groups that it has made with a start; some may have caught up


class NodeDesk:
    """What one node is lent in a turn; of one connection for messages."""

    def __init__(self, lending: Lending, node: Member, state: State, ask: Callable[[], None], bytes_max: int) -> None:
        self._lending = lending
        self._node = node
        self._ask = ask
        self._bytes_max = bytes_max
        self._lent = bytearray()
        self.outlet = LentOutlet(state, self._lend)

    def _lend(self, message: Message, member: Subscription, flags: int, packet_id: int) -> None:
        flow = member.flow
        assert isinstance(flow, LentFlow)
        client = flow.owner
        assert isinstance(client, LentClient)
        if flags & 8:
            return  # the node has it
        group = group_of(member)
        assert group is not None
        if flags & 4 and flow.is_stored and message.timestamp:
            client.unowned[message.shard, message.timestamp] = packet_id
        lent = LentMessage(
            client.channel,
            client.numbers[group.key],
            packet_id,
            flags,
            message.shard,
            message.timestamp,
            _encode(message),
        )
        if not self._lent:
            self._ask()
        self._lent += encode_lease(lent)
        if len(self._lent) >= self._bytes_max:
            self.outlet.is_shut = True

    def take(self) -> bytes:
        """What to send now."""
        lent, self._lent = self._lent, bytearray()
        return bytes(lent)

    def note_unwritten(self, size: int) -> None:
        """This many bytes wait for the node."""
        was_shut = self.outlet.is_shut
        self.outlet.is_shut = size >= self._bytes_max
        if was_shut and not self.outlet.is_shut:
            self._lending.note_room(self._node)


def _encode(message: Message) -> bytes:
    return encode_record(
        message.topic, message.payload, message.qos, message.retain, message.publisher, message.properties,
        message.wall_expiry(), message.expiry_offset,
    )  # fmt: skip


class LendingServices(Protocol):
    """The parts of the core's broker that lending uses."""

    @property
    def groups(self) -> Groups: ...
    @property
    def sharing(self) -> GroupBinding: ...
    @property
    def state(self) -> State: ...
    @property
    def restoration(self) -> Restoration: ...


class Lending:
    """All memberships of clients on nodes."""

    def __init__(self, broker: LendingServices, led: LedShards | None = None) -> None:
        """``led``: None: this is the only core."""
        self._led = led
        # A lease of QoS 2 needs the rows of the group and of the session in one batch: with several cores there are two (S10).
        self._qos_max = 2 if led is None or led.is_all else 1
        self._groups = broker.groups
        self._sharing = broker.sharing
        self._state = broker.state
        self._clients: dict[ClientKey, LentClient] = {}
        self._nodes: dict[Member, dict[ClientKey, LentClient]] = {}
        self._desks: dict[Member, NodeDesk] = {}
        self._adopt = broker.restoration.adopt_group

    def __len__(self) -> int:
        """Messages that are lent and not answered."""
        return sum(client.flow.inflight_messages() for client in self._clients.values())

    # Memberships

    def expect(self, client_id: str, node: Member, channel: int, shared: Iterable[Subscription]) -> None:
        """A session with these shared subscriptions goes to a node: its groups go on meanwhile."""
        for subscription in shared:
            group = group_of(subscription)
            assert group is not None
            client = self._client(client_id, client_id, node, channel)
            self._join(client, group.key, subscription.qos, subscription.retain_as_published, None, None)
            client.expected.add(group.key)

    def _client(self, key: ClientKey, client_id: str, node: Member, channel: int) -> LentClient:
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = LentClient(client_id, node, channel, self._state)
            self._nodes.setdefault(node, {})[key] = client
        return client

    def _join(
        self, client: LentClient, key: _Key, qos: int, retain_as_published: bool, start: list[int] | None, owner: object
    ) -> Group:
        name, topic_filter = key
        qos = min(qos, self._qos_max)
        member, _ = self._groups.join(name, client.flow, topic_filter, qos, retain_as_published, b"", start, owner)
        group = group_of(member)
        assert group is not None
        client.groups[key] = group
        return group

    def may_join(self, asked: JoinGroup, node: Member, channel: int) -> bool:
        """Whether the client has made few enough groups that still read the past; ``join`` follows."""
        key = asked.name, asked.topic_filter.encode()
        if asked.start is None or self._groups.find(key) is not None:
            return True
        client = self._client(_key_of(asked, node), asked.client_id, node, channel)
        for made in list(client.replaying):
            group = self._groups.find(made)
            if group is not None and not group.log.is_replaying:
                client.replaying.remove(made)
        if len(client.replaying) >= REPLAYS_MAX:
            return False
        client.replaying.add(key)
        return True

    def join(self, asked: JoinGroup, node: Member, channel: int, owner: object) -> None:
        """A client of a node is a member, or is one in another way than before."""
        client = self._client(_key_of(asked, node), asked.client_id, node, channel)
        key = asked.name, asked.topic_filter.encode()
        is_new = self._groups.find(key) is None
        group = self._join(client, key, asked.qos, asked.retain_as_published, self._own(asked.start), owner)
        if is_new:
            self._adopt(group)
        client.numbers[key] = asked.number
        client.expected.discard(key)
        client.window = asked.window
        client.flow.is_stored = asked.is_stored
        self._attach(client)
        self._groups.relieve_all([group])

    def _own(self, start: list[int] | None) -> list[int] | None:
        """Where a group begins to read the log of this core."""
        return start if start is None or self._led is None else self._led.own(start, self._state.marks)

    def leave(self, key_of_client: ClientKey, name: str, topic_filter: str) -> None:
        """A client of a node is no longer a member. What it was lent stays with it."""
        client = self._clients.get(key_of_client)
        key = name, topic_filter.encode()
        group = None if client is None else client.groups.pop(key, None)
        if client is None or group is None:
            return
        client.expected.discard(key)
        self._groups.leave(group, client.flow)
        self._attach(client)

    def _attach(self, client: LentClient) -> None:
        """Lend to the client from now on, if it has its node's attention and all of its memberships are known there."""
        desk = self._desks.get(client.node)
        if desk is None or client.expected or client.flow.channel is not None:
            return
        client.flow.attach(desk.outlet, client.window)
        self._groups.relieve_all(list(client.groups.values()))

    def stop(self, client_id: str) -> None:
        """The client's channel has ended; ``end`` follows when its session is back."""
        client = self._clients.get(client_id)
        if client is not None and client.flow.channel is not None:
            client.flow.detach()

    def end(self, key: ClientKey, *, is_dead: bool) -> None:
        """The client's channel has ended, ``is_dead`` because its node has. Its memberships are over."""
        client = self._clients.pop(key, None)
        if client is None:
            return
        of_node = self._nodes[client.node]
        del of_node[key]
        if not of_node:
            del self._nodes[client.node]
        client.flow.detach()
        client.flow.is_over = True
        groups = list(client.groups.values())
        for group in groups:
            self._groups.leave(group, client.flow)
        keeps_qos2 = is_dead and not client.flow.is_stored  # the client may have seen it
        self._give_back(client, [packet_id for packet_id, _ in client.flow.inflight_items()], keeps_qos2)
        client.flow.discard()

    # Leases

    def answer(self, key: ClientKey, lease: int, outcome: int) -> None:
        """A node has answered a lease of its client."""
        client = self._clients.get(key)
        if client is None:
            return
        if outcome == SETTLED:
            self._settle(client, lease)
        else:
            self._give_back(client, [lease], keeps_qos2=False)
        client.owned.discard(lease)
        self._sharing.feed_lent(client.flow)

    def _settle(self, client: LentClient, lease: int) -> None:
        delivery = client.flow.lent(lease)
        if delivery is None:
            return
        if delivery.qos == 1:
            client.flow.on_puback(lease, 0)
            return
        client.flow.on_pubrec(lease, 0x80)  # nothing of it is left here
        self._disown(client, delivery)

    def _disown(self, client: LentClient, delivery: Delivery) -> None:
        """A QoS 2 message was settled without having been in the session's cursor, because no client can have it."""
        place = delivery.place()
        group = group_of(delivery.subscription)
        if client.unowned.pop(place, None) is not None and group is not None and not group.log.is_over:
            group.log.settle(place)

    def _give_back(self, client: LentClient, leases: list[int], keeps_qos2: bool) -> None:
        returned: dict[GroupCursor, list[Lease]] = {}
        owned, unowned = client.owned, client.unowned
        numbers = {id(client.flow.lent(lease)): lease for lease in leases}

        def is_returned(delivery: Delivery) -> bool:
            group = group_of(delivery.subscription)
            place = delivery.place()
            unowned.pop(place, None)
            if group is None or group.log.is_over or not place[1]:
                return True
            if delivery.qos == 2 and (keeps_qos2 or numbers[id(delivery)] in owned):
                return True
            returned.setdefault(group.log, []).append((place, delivery.message))
            return True

        client.flow.withdraw_inflight(leases, is_returned)
        for log, found in returned.items():
            # On disk, a QoS 2 message of a session that is not is no longer the group's.
            log.give_back(found, at_once=not client.flow.is_stored)

    def take_over(self, client_id: str, cursor: CursorRow) -> list[Change]:
        """A session's cursor is about to be written: rows to write with it, of groups that no longer have what it has."""
        client = self._clients.get(client_id)
        if client is None or not client.unowned:
            return []
        logs: dict[GroupCursor, None] = {}
        for each in cursor.inflight:
            packet_id = client.unowned.pop((each.shard, each.timestamp), None) if each.qos == 2 else None
            delivery = None if packet_id is None else client.flow.lent(packet_id)
            group = None if delivery is None else group_of(delivery.subscription)
            if packet_id is None or group is None:
                continue
            client.owned.add(packet_id)
            group.log.hand_on((each.shard, each.timestamp))
            if not group.log.is_over and group.flow.is_durable:
                logs[group.log] = None
        return [self._sharing.row_of(log) for log in logs]

    # Nodes

    def open(self, node: Member, ask: Callable[[], None], bytes_max: int) -> NodeDesk:
        """A node has connected for messages. It states what it has before anything is lent to it."""
        return NodeDesk(self, node, self._state, ask, bytes_max)

    def resume(self, desk: NodeDesk, node: Member, statement: LeaseStatement) -> None:
        """What a node has, after a connection was made: what was lent and is not there never arrived."""
        self._desks[node] = desk
        stated = {each.channel: each for each in statement.channels}
        for client in list(self._nodes.get(node, {}).values()):
            known = stated.get(client.channel)
            held = set() if known is None else set(known.held)
            settled = set() if known is None else set(known.settled)
            lent = [packet_id for packet_id, _ in client.flow.inflight_items()]
            for lease in [each for each in lent if each in settled]:
                self._settle(client, lease)
                client.owned.discard(lease)
            lost = [each for each in lent if each not in settled and each not in held]
            self._give_back(client, lost, keeps_qos2=False)
            client.owned.difference_update(lost)
            self._attach(client)

    def lose(self, node: Member) -> None:
        """The connection to a node is lost: its clients keep what they were lent."""
        self._desks.pop(node, None)
        for client in self._nodes.get(node, {}).values():
            if client.flow.channel is not None:
                client.flow.detach()

    def note_room(self, node: Member) -> None:
        """A node takes more."""
        for client in list(self._nodes.get(node, {}).values()):
            self._sharing.feed_lent(client.flow)


def _key_of(asked: JoinGroup, node: Member) -> ClientKey:
    return (node, asked.channel) if asked.channel else asked.client_id
