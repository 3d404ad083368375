"""What a peer has sent becomes the same deliveries as if it had been published here; malformed bodies do no harm."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.lane.path.message import Message
from braidmq.lane.peers.peer import CONTINUED, FEED, FORWARD, QOS0, V5, Body
from braidmq.lane.peers.peer_receiver import BadBody, PeerReceiver
from braidmq.lane.records.records import encode_record
from braidmq.lane.routing.routes import Route
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, MQTT311, Publish
from braidmq.mqtt.properties import Properties
from tests.lane.peers.nodes import Node, payloads, received, subscribe
from tests.support.simulator.lane import FakeChannel


def record(payload: bytes, topic: bytes = b"t", qos: int = 1, publisher: str = "p") -> bytes:
    return encode_record(topic, payload, qos, False, publisher)


def feed(*records: tuple[int, bytes]) -> bytes:
    return b"".join(stamp.to_bytes(8, "big") + len(value).to_bytes(4, "big") + value for stamp, value in records)


def forwards(*values: bytes) -> bytes:
    return b"".join(len(value).to_bytes(4, "big") + value for value in values)


@pytest.fixture
def node() -> Node:
    return Node(wanted=())


# Same deliveries

TOPICS = st.sampled_from(("a", "a/b", "c"))
EVENTS = st.tuples(
    st.sampled_from(("old", "new", "broker", "recorded", "forwarded")),
    TOPICS,
    st.booleans(),
    st.booleans(),
    st.sampled_from((0, 5, 70, 400)),
)


def publish(node: Node, clients: dict[str, FakeChannel], event: tuple[str, str, bool, bool, int], number: int) -> None:
    """Publish one message at this node; the payload has its number."""
    kind, topic, retain, has_properties, size = event
    payload = b"%06d" % number + b"x" * size
    if kind in clients:
        properties = Properties(content_type="json") if has_properties and kind == "new" else Properties()
        if retain:  # retained messages take the slow path in a broker, which delivers a message
            message = Message(topic.encode(), payload, 0, True, kind)
            if kind == "new" and has_properties:
                message.set_properties(b"\x03\x00\x04json", 0.0, -1)
            node.publish(message)
        else:
            channel = clients[kind]
            channel.read(encode(Publish(topic, payload, 0, properties=properties), channel.version))
        return
    message = Message(topic.encode(), payload, 0 if kind == "broker" else 1 + number % 2, retain, "p")
    if has_properties:
        message.set_properties(b"\x03\x00\x04json", 0.0, -1)
    node.publish(message, 1000 + number if kind == "recorded" else 0, number % 2)


def by_source(packets: list[Publish], events: list[tuple[str, str, bool, bool, int]]) -> dict[object, list[tuple[object, ...]]]:
    """What was delivered, by what its order is kept for: publisher and path, and the shard of a recorded message."""
    found: dict[object, list[tuple[object, ...]]] = {}
    for packet in packets:
        number = int(packet.payload[:6])
        kind = events[number][0]
        key = (kind, number % 2) if kind == "recorded" else kind
        content = (packet.topic, packet.payload, packet.qos, packet.retain, packet.properties.content_type)
        found.setdefault(key, []).append(content)
    return found


@given(
    events=st.lists(EVENTS, max_size=60),
    turns=st.sets(st.integers(0, 60)),
    body_bytes_max=st.sampled_from((60, 150, 1000, 1 << 20)),
    work_max=st.sampled_from((1, 30, 1_000_000)),
    version=st.sampled_from((MQTT311, MQTT5)),
)
@settings(deadline=None)
def test_a_peers_subscribers_get_what_they_would_get_on_the_publishers_node(
    events: list[tuple[str, str, bool, bool, int]], turns: set[int], body_bytes_max: int, work_max: int, version: int
) -> None:
    here, there = Node(wanted=(b"a/#", b"c"), body_bytes_max=body_bytes_max), Node()
    there.state.work_max = work_max
    there.recorder.outcomes.on_more = lambda: None
    clients = {"old": here.channel(here.flow("old"), MQTT311), "new": here.channel(here.flow("new"), MQTT5)}
    own, other = subscribe(here, version=version), subscribe(there, version=version)

    for number, event in enumerate(events):
        publish(here, clients, event, number)
        if number in turns:
            here.hand_over(there)
    bodies = here.hand_over(there)
    there.recorder.outcomes.finish()

    assert by_source(received(other), events) == by_source(received(own), events)
    assert all(len(body) <= body_bytes_max for _, _, _, body in bodies)
    # Nothing of it returns, except what the home's feed and forwards would bring back to a node anyway.
    assert QOS0 not in {kind for kind, _, _, _ in there.outlet.take_frames()}


@pytest.mark.parametrize("size", [1, 1 << 20, 5 << 20])
@pytest.mark.parametrize("kind", ["qos0", "recorded", "forwarded"])
def test_large_messages_arrive_whole(kind: str, size: int) -> None:
    here, there = Node(), Node(wanted=())
    subscriber = subscribe(there)
    payload = bytes(range(256)) * (size // 256) + b"end"

    message = Message(b"t", payload, 0 if kind == "qos0" else 1, False, "p")
    here.publish(message, 101 if kind == "recorded" else 0)
    here.hand_over(there)

    assert payloads(subscriber) == [payload]


def test_a_large_frame_of_a_client_arrives_whole() -> None:
    here, there = Node(body_bytes_max=1000), Node(wanted=())
    subscriber = subscribe(there)
    packets = [Publish("t", bytes([number]) * size, 0) for number, size in enumerate((10, 990, 996, 997, 5000, 10))]
    channel = here.channel(here.flow("p"), MQTT311)
    for packet in packets:
        channel.read(encode(packet, MQTT311))

    bodies = here.hand_over(there)

    assert payloads(subscriber) == [packet.payload for packet in packets]
    assert max(len(body) for _, _, _, body in bodies) == 1000


# QoS 0


def test_work_is_bounded_and_goes_on_in_a_later_turn(node: Node) -> None:
    subscriber = subscribe(node)
    node.state.work_max = 100
    frames = b"".join(encode(Publish("t", b"%d" % number, 0), MQTT5) for number in range(300))

    is_done = node.receiver.take(QOS0, V5, 0, frames)

    first = payloads(subscriber)
    assert not is_done
    assert 10 < len(first) <= 100
    turns = 0
    while not is_done:
        is_done = node.receiver.go_on()
        turns += 1
    assert first + payloads(subscriber) == [b"%d" % number for number in range(300)]
    assert turns >= 5


def test_a_route_that_changes_between_two_turns_is_used(node: Node) -> None:
    first, second = subscribe(node, "first"), None
    node.state.work_max = 1
    frames = b"".join(encode(Publish("t", b"%d" % number, 0), MQTT5) for number in range(3))

    is_done = node.receiver.take(QOS0, V5, 0, frames)
    second = subscribe(node, "second")
    while not is_done:
        is_done = node.receiver.go_on()

    assert payloads(first) == [b"0", b"1", b"2"]
    assert payloads(second) == [b"1", b"2"]


def test_a_route_with_flags_goes_to_the_broker_while_the_peer_is_muted() -> None:
    node = Node()
    node.routes.inspector = lambda topic: 2 if topic == b"hooked" else 0
    node.routes.refresh()
    subscriber = subscribe(node)
    slow: list[tuple[bytes, bool, bool]] = []

    def on_slow(message: Message, route: Route) -> None:
        slow.append((message.payload, message.retain, node.outlet.is_muted))
        node.lane.publish(message, route, node.peer)

    node.receiver.on_slow = on_slow
    packets = [Publish("hooked", b"1", 0, retain=True), Publish("t", b"2", 0), Publish("hooked", b"3", 0), Publish("t", b"4", 0)]

    node.receive([(QOS0, V5, 0, b"".join(encode(packet, MQTT5) for packet in packets))])

    assert slow == [(b"1", True, True), (b"3", False, True)]
    assert payloads(subscriber) == [b"1", b"2", b"3", b"4"]
    assert node.outlet.take_frames() == []
    assert not node.outlet.is_muted


def test_a_wide_route_is_served_in_parts_and_not_back_to_the_peer() -> None:
    node = Node(wanted=())
    node.state.work_max = 20
    node.routes.weight_max = 20
    asked = []
    node.recorder.outcomes.on_more = lambda: asked.append(1)
    subscribers = [subscribe(node, f"s{number}") for number in range(50)]
    node.routes.apply_remote([b"#"], [], Subscription(node.peer, b"#", 2))  # the last destination, so of a later part

    node.receive([(QOS0, V5, 0, encode(Publish("t", b"1", 0), MQTT5))])

    assert asked
    assert sum(len(received(each)) for each in subscribers) < 50
    node.recorder.outcomes.finish()
    assert sum(len(received(each)) for each in subscribers) > 0
    assert node.outlet.take_frames() == []
    node.publish(Message(b"u", b"own", 0, False, "p"))
    assert len(node.outlet.take_frames()) == 1


def test_a_topic_that_this_node_does_not_allow_is_left_out(node: Node) -> None:
    subscriber = subscribe(node)
    node.routes.levels_max = 2
    node.routes.refresh()

    node.receive([(QOS0, V5, 0, encode(Publish("a/b/c", b"1", 0), MQTT5) + encode(Publish("a/b", b"2", 0), MQTT5))])

    assert payloads(subscriber) == [b"2"]


def test_no_local_concerns_no_message_of_another_node(node: Node) -> None:
    flow = node.flow("peer")  # a client may have the name of a node
    node.routes.add(Subscription(flow, b"#", 2, no_local=True))
    subscriber = node.channel(flow, MQTT5)

    node.receive([(QOS0, V5, 0, encode(Publish("t", b"1", 0), MQTT5))])

    assert payloads(subscriber) == [b"1"]


# Records


def test_a_feed_is_shown_in_order_and_moves_the_marks(node: Node) -> None:
    subscriber = subscribe(node)
    node.routes.inspector = None

    node.receive([(FEED, 0, 0, feed((101, record(b"1")), (102, record(b"2")))), (FEED, 0, 1, feed((55, record(b"3"))))])

    assert payloads(subscriber) == [b"1", b"2", b"3"]
    assert node.state.marks == [102, 55]
    assert node.receiver.messages == 3


def test_a_record_that_was_shown_before_is_left_out(node: Node) -> None:
    subscriber = subscribe(node)
    node.state.work_max = 4
    node.recorder.outcomes.on_more = lambda: None

    # The feed starts again at the marks while records wait to be shown.
    for _ in range(2):
        node.receiver.take(FEED, 0, 0, feed((11, record(b"1")), (12, record(b"2"))))
        while not node.receiver.go_on():
            pass
    node.recorder.outcomes.finish()

    assert payloads(subscriber) == [b"1", b"2"]
    assert node.state.marks == [12, 20]


def test_no_local_goes_by_the_publisher_of_a_record(node: Node) -> None:
    flow = node.flow("own")
    node.routes.add(Subscription(flow, b"#", 2, no_local=True))
    subscriber = node.channel(flow, MQTT5)

    node.receive([(FEED, 0, 0, feed((101, record(b"1", publisher="own")), (102, record(b"2"))))])
    node.receive([(FORWARD, 0, 1, forwards(record(b"3", publisher="own"), record(b"4")))])

    assert payloads(subscriber) == [b"2", b"4"]


def test_forwards_move_no_marks(node: Node) -> None:
    subscriber = subscribe(node)

    node.receive([(FORWARD, 0, 7, forwards(record(b"1"), record(b"2", qos=2)))])

    assert [(packet.payload, packet.qos) for packet in received(subscriber)] == [(b"1", 1), (b"2", 2)]
    assert node.state.marks == [10, 20]


def test_a_long_backlog_stops_the_records_of_a_feed(node: Node) -> None:
    node.recorder.outcomes.on_more = lambda: None
    subscribe(node)
    large = record(b"x" * (3 << 20))
    node.state.work_max = 1
    node.recorder.outcomes.show(Message(b"t", b"", 1, False, "p"), None, None, 0, 0)  # uses up the work of this turn

    node.state.work_max = 1000
    body = feed(*((100 + number, large) for number in range(10)))
    assert node.receiver.take(FEED, 0, 0, body)  # lateness is judged at the end of a callback
    assert node.recorder.outcomes.is_late
    assert not node.receiver.take(FEED, 0, 0, feed((200, large)))

    node.recorder.outcomes.go_on()
    assert node.receiver.go_on()


# Malformed bodies

GOOD_BODIES: list[Body] = [
    (QOS0, 0, 0, encode(Publish("t", b"1", 0), MQTT311) + encode(Publish("long/topic", b"x" * 200, 0), MQTT311)),
    (QOS0, V5, 0, encode(Publish("t", b"1", 0, properties=Properties(content_type="x", message_expiry_interval=9)), MQTT5)),
    (FEED, 0, 1, feed((101, record(b"1")), (102, encode_record(b"t", b"2", 1, True, "p", b"\x02\x00\x00\x00\x09", 1 << 60, 1)))),
    (FORWARD, 0, 1, forwards(record(b"1"), encode_record(b"t", b"2", 1, True, "p", b"\x02\x00\x00\x00\x09", 1 << 60, 1))),
]


@pytest.mark.parametrize("body", GOOD_BODIES, ids=["qos0", "qos0-v5", "feed", "forward"])
def test_a_body_that_ends_anywhere_within_an_item_is_rejected(body: Body) -> None:
    kind, flags, destination, data = body
    for end in range(len(data)):
        node = Node(wanted=())
        subscriber = subscribe(node)
        before = received(subscriber)
        try:
            node.receive([(kind, flags, destination, data[:end])])
        except BadBody:
            is_cut = True
        else:
            is_cut = False
        got = before + received(subscriber)
        assert is_cut or len(got) == node.receiver.messages  # a cut between two items cannot be seen
        assert len(got) < 2 + (kind == QOS0)
    whole = Node(wanted=())
    whole.receive([body])


@given(data=st.data())
@settings(deadline=None)
def test_random_changes_of_a_body_raise_nothing_but_bad_body(data: st.DataObject) -> None:
    kind, flags, destination, body = data.draw(st.sampled_from(GOOD_BODIES))
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    node = Node(wanted=())
    subscribe(node)

    with contextlib.suppress(BadBody):
        node.receive([(kind, flags, destination, bytes(changed))])


@given(kind=st.sampled_from((QOS0, FORWARD, FEED)), flags=st.sampled_from((0, V5, CONTINUED)), body=st.binary(max_size=64))
def test_random_bodies_raise_nothing_but_bad_body(kind: int, flags: int, body: bytes) -> None:
    node = Node(wanted=())
    with contextlib.suppress(BadBody):
        node.receive([(kind, flags, 0, body)])


@pytest.mark.parametrize(
    "body",
    [
        (QOS0, 4, 0, b""),
        (FEED, V5, 0, b""),
        (3, 0, 0, b""),
        (FEED, 0, 2, b""),
        (FEED, 0, -1, b""),
        (FEED, 0, 0, feed((0, record(b"")))),
        (FEED, 0, 0, feed((1 << 63, record(b"")))),
        (FEED, 0, 0, feed((101, b""))),
        (FORWARD, 0, 1, forwards(b"\x02" + record(b"")[1:])),
        (FORWARD, 0, 1, forwards(encode_record(b"t", b"", 1, False, "p", b"\x02\x00\x00\x00\x09", 1 << 60, 2))),
        (FORWARD, 0, 1, forwards(encode_record(b"t", b"", 1, False, "p", b"\x02\x00\x00\x00\x09", 1 << 60, -2))),
        (FORWARD, 0, 1, forwards(record(b"").replace(b"tp", b"t\xff"))),
        (QOS0, V5, 0, encode(Publish("t", b"", 1, packet_id=1), MQTT5)),
        (QOS0, V5, 0, encode(Publish("t", b"", 0, properties=Properties(topic_alias=1)), MQTT5)),
        (QOS0, V5, 0, b"\xc0\x00"),
        (QOS0, 0, 0, b"\x30"),
    ],
)
def test_a_malformed_body_is_rejected(node: Node, body: Body) -> None:
    with pytest.raises(BadBody):
        node.receive([body])


def test_messages_before_a_malformed_one_are_delivered_and_the_peer_is_no_longer_muted() -> None:
    node = Node()
    subscriber = subscribe(node)

    with pytest.raises(BadBody):
        node.receive([(QOS0, V5, 0, encode(Publish("t", b"1", 0), MQTT5) + b"\xff")])

    assert payloads(subscriber) == [b"1"]
    assert not node.outlet.is_muted


@pytest.mark.parametrize("second", [(FEED, 0, 1, b"x"), (FORWARD, 0, 0, b"x"), (QOS0, 0, 0, b"x")])
def test_the_parts_of_an_item_follow_each_other(node: Node, second: Body) -> None:
    assert node.receiver.take(FEED, CONTINUED, 0, b"x")

    with pytest.raises(BadBody, match="before the rest"):
        node.receiver.take(*second)


def test_the_parts_of_an_item_are_bounded_together(node: Node) -> None:
    receiver = PeerReceiver(node.lane, node.recorder.outcomes, node.peer, 100)
    assert receiver.take(FEED, CONTINUED, 0, b"x" * 100)

    with pytest.raises(BadBody, match="more than 100 bytes"):
        receiver.take(FEED, CONTINUED, 0, b"x")
