"""What waits for a peer: which messages, in which form and order, and what happens when there is no room."""

from __future__ import annotations

import pytest

from braidmq.lane.path.message import Message
from braidmq.lane.peers.peer import CONTINUED, FEED, FORWARD, QOS0, V5, PeerFlow, PeerOutlet, SilentFlow
from braidmq.lane.records.records import Record, encode_record
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, MQTT311, Publish
from braidmq.mqtt.properties import Properties
from braidmq.net.frames import FrameKind
from tests.lane.peers.nodes import Node, packets_of, payloads, received, subscribe
from tests.support.simulator.lane import FakeChannel


@pytest.fixture
def node() -> Node:
    return Node()


def send(channel: FakeChannel, *packets: Publish) -> None:
    channel.read(b"".join(encode(packet, channel.version) for packet in packets))


def feed_records(body: bytes) -> list[tuple[int, bytes]]:
    found = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at + 8 : at + 12], "big")
        found.append((int.from_bytes(body[at : at + 8], "big"), body[at + 12 : at + 12 + size]))
        at += 12 + size
    return found


def forward_records(body: bytes) -> list[bytes]:
    found = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        found.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def test_kinds_and_flags_are_those_of_frames_between_nodes() -> None:
    assert (QOS0, FORWARD, FEED) == (FrameKind.QOS0, FrameKind.FORWARD, FrameKind.FEED)
    assert not V5 & CONTINUED


# QoS 0


def test_qos_0_frames_wait_as_they_came_by_protocol_version(node: Node) -> None:
    old, new = node.channel(node.flow("old"), MQTT311), node.channel(node.flow("new"), MQTT5)
    first, second = Publish("a", b"1", 0), Publish("b", b"2", 0, properties=Properties(content_type="x"))

    send(old, first)
    send(new, second)

    assert sorted(node.outlet.take_frames()) == [(QOS0, 0, 0, encode(first, MQTT311)), (QOS0, V5, 0, encode(second, MQTT5))]


def test_a_frame_for_a_peer_does_not_count_as_sent_to_a_client(node: Node) -> None:
    subscriber = subscribe(node)

    send(node.channel(node.flow("p"), MQTT5), Publish("a", b"1", 0))

    assert payloads(subscriber) == [b"1"]
    assert node.state.counters.publish_qos0_sent == 1


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_a_retained_message_keeps_its_flag_and_its_place_among_others_of_its_publisher(node: Node, version: int) -> None:
    publisher = node.channel(node.flow("p"), version)

    for number in range(9):
        if number % 3 == 1:
            node.publish(Message(b"t", b"%d" % number, 0, True, "p"))
        else:
            send(publisher, Publish("t", b"%d" % number, 0))

    packets = [packet for body in node.outlet.take_frames() for packet in packets_of(body)]
    assert [(packet.payload, packet.retain) for packet in packets] == [(b"%d" % each, each % 3 == 1) for each in range(9)]


def test_a_retained_message_follows_all_earlier_frames_of_mqtt_3_even_after_another_one(node: Node) -> None:
    publisher = node.channel(node.flow("p"), MQTT311)
    node.outlet = PeerOutlet("peer", node.state, 1 << 30, 40)  # so small that bodies are full after a few frames
    node.peer.attach(node.outlet, 0)

    for number in range(30):
        if number % 4 == 3:
            node.publish(Message(b"t", b"%d" % number, 0, True, "p"))
        else:
            send(publisher, Publish("t", b"%d" % number, 0))

    packets = [packet for body in node.outlet.take_frames() for packet in packets_of(body)]
    assert [packet.payload for packet in packets] == [b"%d" % each for each in range(30)]


def test_an_encoded_message_keeps_its_properties_and_says_how_long_it_still_lives(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("braidmq.lane.path.expiry.monotonic", lambda: 100.0)
    message = Message(b"t", b"x", 0, True, "p")
    message.set_properties(b"\x02\x00\x00\x00\x63\x03\x00\x01y", 107.5, 1)

    node.publish(message)

    (body,) = node.outlet.take_frames()
    (packet,) = packets_of(body)
    assert (packet.properties.message_expiry_interval, packet.properties.content_type) == (8, "y")


def test_an_expired_message_is_not_sent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.lane.path.expiry.monotonic", lambda: 100.0)
    message = Message(b"t", b"x", 0, True, "p")
    message.set_properties(b"\x02\x00\x00\x00\x63", 99.0, 1)

    node.publish(message)

    assert node.outlet.take_frames() == []
    assert node.state.counters.dropped_expired == 1


def test_what_came_from_the_peer_does_not_return_to_it(node: Node) -> None:
    frame = encode(Publish("t", b"1", 0), MQTT5)
    retained = encode(Publish("t", b"2", 0, retain=True), MQTT5)
    subscriber = subscribe(node)

    node.receive([(QOS0, V5, 0, frame + retained)])

    assert payloads(subscriber) == [b"1", b"2"]
    assert node.outlet.take_frames() == []
    send(node.channel(node.flow("p"), MQTT5), Publish("t", b"3", 0))
    assert len(node.outlet.take_frames()) == 1


def test_records_and_forwards_are_sent_even_while_the_peer_is_muted(node: Node) -> None:
    node.outlet.is_muted = True

    node.publish(Message(b"t", b"1", 1, False, "p"), timestamp=101)
    node.publish(Message(b"t", b"2", 1, False, "p"))
    node.publish(Message(b"t", b"3", 0, False, "p"))

    assert {kind for kind, _, _, _ in node.outlet.take_frames()} == {FEED, FORWARD}


def test_a_full_outlet_drops_qos_0_and_counts_it() -> None:
    node = Node(bytes_max=1)
    publisher = node.channel(node.flow("p"), MQTT5)

    send(publisher, Publish("t", b"1", 0), Publish("t", b"2", 0))
    node.publish(Message(b"t", b"3", 0, True, "p"))

    (body,) = node.outlet.take_frames()
    assert [packet.payload for packet in packets_of(body)] == [b"1"]
    assert node.state.counters.dropped_peer_full == 2
    assert node.drops == [("peer_full", "peer", b"t")] * 2


# Room


def test_bytes_that_the_connection_has_not_written_take_room() -> None:
    node = Node(bytes_max=200)
    message = Message(b"t", b"x" * 60, 1, False, "p")
    node.publish(message)
    assert node.outlet.waiting_bytes == 4 + len(encode_record(b"t", b"x" * 60, 1, False, "p"))
    waited = node.outlet.waiting_bytes

    node.outlet.take_frames()
    assert (node.outlet.waiting_bytes, node.outlet.unwritten_bytes, node.outlet.has_room()) == (0, waited, True)
    node.outlet.note_unwritten(200)
    node.publish(message)
    assert (node.outlet.has_room(), node.outlet.take_frames(), node.peer.is_lagging) == (False, [], True)
    node.outlet.note_unwritten(99)

    assert node.outlet.has_room()
    node.publish(message)
    assert len(node.outlet.take_frames()) == 1


def test_work_is_asked_for_once_until_it_is_taken(node: Node) -> None:
    for number in range(3):
        node.publish(Message(b"t", b"", 0, False, "p"))
        node.publish(Message(b"t", b"", 1, False, "p"), timestamp=101 + number)
    assert node.asked == 1

    node.outlet.take_frames()
    assert node.asked == 1
    node.publish(Message(b"t", b"", 1, False, "p"))

    assert node.asked == 2


# Records


def test_recorded_messages_wait_by_shard_in_the_order_of_their_commits(node: Node) -> None:
    for timestamp, shard in ((101, 0), (55, 1), (102, 0), (56, 1)):
        node.publish(Message(b"t", b"%d" % timestamp, 1, False, "p"), timestamp, shard)

    feeds = {destination: feed_records(body) for _, _, destination, body in node.outlet.take_frames()}

    assert {shard: [stamp for stamp, _ in records] for shard, records in feeds.items()} == {0: [101, 102], 1: [55, 56]}
    assert Record(101, feeds[0][0][1]).payload == b"101"


def test_a_record_is_encoded_once_for_all_peers_and_not_at_all_if_it_exists(node: Node) -> None:
    node.recorder.keeps_values = True
    node.routes.inspector = lambda topic: 1 << 16
    node.routes.refresh()
    other = PeerFlow("other", node.state)
    outlet = PeerOutlet("other", node.state, 1 << 30, 1 << 20)
    other.attach(outlet, 0)
    other.follow()
    node.routes.apply_remote([b"#"], [], Subscription(other, b"#", 2))
    value = encode_record(b"t", b"x", 1, False, "p", session_only=True)

    node.recorder.record_value(Message(b"t", b"x", 1, False, "p"), value, 0, True, None, None, 0, 0)
    node.take().committed({0: [101]})

    for each in (node.outlet, outlet):
        (body,) = each.take_frames()
        assert feed_records(body[3]) == [(101, value)]  # with its session-only flag, which a message does not have
    assert node.state.encoded is None


def test_a_full_outlet_falls_behind_before_the_message_that_did_not_fit_and_takes_nothing_more() -> None:
    node = Node(bytes_max=60)
    for timestamp in (101, 102, 103, 104):
        node.publish(Message(b"t", b"x" * 40, 1, False, "p"), timestamp)

    (body,) = node.outlet.take_frames()
    assert [stamp for stamp, _ in feed_records(body[3])] == [101]
    assert (node.peer.is_following, node.peer.cursor(), node.behind) == (False, [101, 20], 1)
    node.outlet.note_unwritten(0)
    node.publish(Message(b"t", b"", 1, False, "p"), 105)
    assert node.outlet.take_frames() == []


def test_the_owner_reads_the_log_for_a_peer_that_is_behind_until_it_follows_again() -> None:
    node = Node(bytes_max=60)
    node.peer.fall_behind()
    value = encode_record(b"t", b"x" * 60, 1, False, "p")

    assert node.peer.take_record(1, 55, value)
    assert not node.peer.take_record(1, 56, value)
    (body,) = node.outlet.take_frames()
    assert (body[2], feed_records(body[3])) == (1, [(55, value)])
    node.outlet.note_unwritten(0)
    assert node.peer.take_record(1, 56, value)
    node.outlet.take_frames()
    node.outlet.note_unwritten(0)
    node.peer.follow()
    node.publish(Message(b"t", b"", 1, False, "p"), 57, 1)

    ((_, _, shard, _),) = node.outlet.take_frames()
    assert shard == 1


def test_a_peer_without_a_connection_gets_nothing_and_remembers_where_it_stopped(node: Node) -> None:
    node.publish(Message(b"t", b"", 1, False, "p"), 101)
    node.peer.detach()

    for message in (Message(b"t", b"", 0, False, "p"), Message(b"t", b"", 2, False, "p")):
        assert node.publish(message) == 1
    node.publish(Message(b"t", b"", 1, False, "p"), 102)

    assert (node.peer.cursor(), node.behind) == ([101, 20], 0)
    assert len(node.outlet.take_frames()) == 1
    assert not node.peer.take_record(0, 102, b"")


def test_a_peer_that_is_gone_gets_nothing(node: Node) -> None:
    node.peer.discard()

    send(node.channel(node.flow("p"), MQTT5), Publish("t", b"", 0))
    node.publish(Message(b"t", b"", 1, False, "p"))

    assert node.outlet.take_frames() == []


# Unrecorded messages of QoS 1 and 2


def test_forwards_are_numbered_without_gaps_from_the_destination_of_each_body() -> None:
    node = Node(body_bytes_max=70)
    for number in range(5):
        node.publish(Message(b"t", b"%d" % number * 20, 1 + number % 2, False, "p"))
    first = node.outlet.take_frames()
    node.publish(Message(b"t", b"5" * 20, 1, False, "p"))

    bodies = first + node.outlet.take_frames()

    found = [
        (number + at, Record(0, value).payload[:1])
        for _, _, number, body in bodies
        for at, value in enumerate(forward_records(body))
    ]
    assert found == [(1 + number, b"%d" % number) for number in range(6)]
    assert node.peer.forwarded == 6
    assert len(bodies) > 2


def test_a_full_outlet_drops_forwards_and_the_peer_is_lagging() -> None:
    node = Node(bytes_max=10)

    node.publish(Message(b"t", b"1", 1, False, "p"))
    assert not node.peer.is_lagging
    node.publish(Message(b"t", b"2", 2, False, "p"))

    assert (node.peer.is_lagging, node.peer.forwarded, node.state.counters.dropped_peer_full) == (True, 1, 1)


def test_an_uplink_carries_only_qos_0(node: Node) -> None:
    uplink = PeerFlow("core", node.state, is_uplink=True)
    uplink.attach(node.outlet, 0)
    node.peer.detach()
    node.routes.apply_remote([b"#"], [], Subscription(uplink, b"#", 2))

    for message in (Message(b"t", b"1", 1, False, "p"), Message(b"t", b"0", 0, False, "p")):
        node.publish(message)
    node.publish(Message(b"t", b"2", 1, False, "p"), 101)

    (body,) = node.outlet.take_frames()
    assert [packet.payload for packet in packets_of(body)] == [b"0"]


def test_hooks_are_not_asked_for_peers(node: Node) -> None:
    subscriber = subscribe(node)
    asked: list[str] = []

    def ask(message: Message, client_id: str) -> Message | None:
        asked.append(client_id)
        return None

    route = node.routes.resolve(b"t")
    assert route is not None
    node.lane.publish_asking(Message(b"t", b"x", 0, False, "p"), route, None, ask)
    node.lane.flush()

    assert (asked, received(subscriber)) == (["s"], [])
    assert len(node.outlet.take_frames()) == 1


# Large items


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_item_that_is_larger_than_a_body_is_cut(qos: int) -> None:
    node = Node(body_bytes_max=100)
    message = Message(b"t", bytes(range(256)) * 2, qos, False, "p")
    node.publish(Message(b"t", b"before", qos, False, "p"), 100 if qos == 2 else 0)
    node.publish(message, 101 if qos == 2 else 0)
    node.publish(Message(b"t", b"after", qos, False, "p"), 102 if qos == 2 else 0)

    bodies = node.outlet.take_frames()

    assert all(len(body) <= 100 for _, _, _, body in bodies)
    parts = [body for body in bodies if body[1] & CONTINUED]
    assert len(parts) == 5
    assert [body[1] & CONTINUED for body in bodies] == [0] + [CONTINUED] * 5 + [0, 0]
    assert len({body[2] for body in bodies[1:7]}) == 1


# Sessions that live elsewhere


def test_a_silent_flow_has_messages_recorded_and_takes_none(node: Node) -> None:
    flow = SilentFlow("away", node.state)
    node.routes.add(Subscription(flow, b"t", 1))

    route = node.routes.resolve(b"t")
    assert route is not None
    assert route.keep_qos == 1
    node.publish(Message(b"t", b"", 1, False, "p"), 101)

    assert (flow.queue_messages(), flow.inflight_messages(), flow.is_following, node.state.changed) == (0, 0, True, [])
