"""A channel splits the stream into packets, handles the simple ones and hands up the others, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.path.channel_reader import HOLD_BUSY, HOLD_CLOSED, HOLD_QUEUE, HOLD_RATE, HOLD_WORK
from braidmq.lane.path.lane import RECEIVE_BYTES
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import (
    MQTT5,
    MQTT311,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscribeOption,
    Unsubscribe,
)
from tests.support.present import present
from tests.support.simulator.lane import Bench, FakeChannel

PING = b"\xc0\x00"


@pytest.fixture
def bench() -> Bench:
    return Bench()


def subscriber(bench: Bench, topic_filter: str = "t", qos: int = 2, version: int = MQTT5, window: int = 100) -> FakeChannel:
    flow = bench.flow(f"s{id(topic_filter)}{version}")
    channel = bench.channel(flow, version, window)
    bench.routes.add(Subscription(flow, topic_filter.encode(), qos))
    return channel


def frames(*packets: Packet, version: int = MQTT5) -> bytes:
    return b"".join(encode(packet, version) for packet in packets)


# Any way of arriving

_packets = st.lists(
    st.one_of(
        st.builds(Publish, st.sampled_from(("t", "u")), st.binary(max_size=20)),
        st.builds(Publish, st.just("t"), st.binary(max_size=300), st.integers(1, 2), packet_id=st.integers(1, 4)),
        st.builds(Pubrel, st.integers(1, 4)),
        st.builds(Puback, st.integers(1, 4)),
        st.just(Pingreq()),
        st.just(Subscribe(1, [SubscribeOption("a", 0)])),
        st.just(Unsubscribe(2, ["a"])),
    ),
    max_size=12,
)


def outcome(stream: bytes, cuts: list[int], way: str) -> tuple[object, ...]:
    """What a client that sends this stream in these pieces brings about."""
    bench = Bench()
    listener = subscriber(bench)
    client = bench.channel(bench.flow("client"), MQTT5)
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        (client.read if way == "read" else client.feed)(stream[start:stop])
    return client.packets, client.sent(), listener.sent(), client.violations, client.messages_received


@given(packets=_packets, rubbish=st.sampled_from((b"", b"\x30\x80\x00", b"\x30\x02\x00\x09")), data=st.data())
def test_frames_are_found_however_the_bytes_are_split(packets: list[Packet], rubbish: bytes, data: st.DataObject) -> None:
    stream = frames(*packets) + rubbish
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))

    whole = outcome(stream, [], "read")

    assert outcome(stream, cuts, "read") == whole
    assert outcome(stream, cuts, "feed") == whole
    assert outcome(stream, list(range(1, len(stream))), "read") == whole


@pytest.mark.parametrize("way", ["read", "feed"])
@pytest.mark.parametrize("piece_bytes", [1000, 60_000, 200_000])
def test_a_frame_larger_than_the_receive_buffer_is_reassembled(bench: Bench, way: str, piece_bytes: int) -> None:
    listener = subscriber(bench)
    client = bench.channel(bench.flow("client"), MQTT5)
    payload = bytes(i % 251 for i in range(RECEIVE_BYTES * 2))
    stream = frames(Publish("t", b"before"), Publish("t", payload), Publish("t", b"after"))

    for at in range(0, len(stream), piece_bytes):
        (client.read if way == "read" else client.feed)(stream[at : at + piece_bytes])

    assert [packet.payload for packet in listener.sent() if isinstance(packet, Publish)] == [b"before", payload, b"after"]


def test_incomplete_frames_of_two_clients_are_kept_apart(bench: Bench) -> None:
    listener = subscriber(bench)
    first, second = bench.channel(bench.flow("1"), MQTT5), bench.channel(bench.flow("2"), MQTT5)
    one, two = frames(Publish("t", b"1" * 50)), frames(Publish("t", b"2" * 50))

    for at in range(0, 60, 7):
        first.read(one[at : at + 7])
        second.read(two[at : at + 7])

    assert sorted(packet.payload for packet in listener.sent() if isinstance(packet, Publish)) == [b"1" * 50, b"2" * 50]


def test_a_first_packet_other_than_connect_is_refused_at_its_first_byte(bench: Bench) -> None:
    client = FakeChannel(bench.lane)

    client.read(b"G")

    assert client.violations == [0x82]


def test_every_packet_before_connack_goes_to_the_broker(bench: Bench) -> None:
    client = FakeChannel(bench.lane)
    client.is_greeted = True

    client.read(frames(Publish("t", b""), Puback(1), Pingreq()))

    assert [kind for kind, _, _ in client.packets] == [3, 4, 12]
    assert client.sent() == []


def test_a_larger_frame_is_accepted_once_the_limit_is_raised(bench: Bench) -> None:
    class Joining(FakeChannel):
        def on_packet(self, kind: int, flags: int, body: bytes) -> None:
            super().on_packet(kind, flags, body)
            self.is_greeted = True
            self.frame_max = 1000

    client = Joining(bench.lane, frame_max=50)
    client.read(b"\x10\x02ab" + frames(Unsubscribe(1, ["x" * 100])))

    assert [kind for kind, _, _ in client.packets] == [1, 10]
    assert client.violations == []


def test_nothing_is_read_from_a_closed_channel(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(b"\x30\x80\x80\x80\x80" + PING)
    client.read(PING)
    client.feed(PING)

    assert client.violations == [0x81]
    assert client.sent() == []
    assert len(client.get_buffer(-1)) == RECEIVE_BYTES, "what came too late was kept"


# Holding


def test_packets_behind_an_undecided_packet_wait(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.hold_on_packet = HOLD_BUSY

    client.read(frames(Subscribe(1, [SubscribeOption("a", 0)]), Pingreq()) + PING[:1])
    assert client.sent() == []
    assert not client.transport.is_reading

    client.resume(HOLD_BUSY)
    assert client.sent() == [Pingresp()]
    assert client.transport.is_reading
    client.read(PING[1:])
    assert client.sent() == [Pingresp()]


def test_bytes_received_while_reading_is_held_are_kept_in_order(bench: Bench) -> None:
    listener = subscriber(bench)
    client = bench.channel(bench.flow("client"), MQTT5)
    client.hold(HOLD_RATE)

    stream = frames(*(Publish("t", bytes((i,)) * 40_000) for i in range(4)))
    for at in range(0, len(stream), 33_000):
        client.read(stream[at : at + 33_000])
    assert listener.sent() == []

    client.resume(HOLD_RATE)
    assert [packet.payload[0] for packet in listener.sent() if isinstance(packet, Publish)] == [0, 1, 2, 3]


def test_reading_resumes_when_the_last_reason_to_pause_is_gone(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.hold(HOLD_RATE)
    client.hold(HOLD_BUSY)
    client.feed(PING)

    client.resume(HOLD_RATE)
    client.resume(HOLD_RATE)
    assert client.sent() == []
    assert not client.transport.is_reading

    client.resume(HOLD_BUSY)
    assert client.sent() == [Pingresp()]
    assert client.transport.is_reading


def test_a_client_held_again_while_it_resumes_stays_held(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.hold_on_packet = HOLD_BUSY
    subscribe = frames(Subscribe(1, [SubscribeOption("a", 0)]))

    client.read(subscribe * 3)
    client.resume(HOLD_BUSY)

    assert len(client.packets) == 2
    assert not client.transport.is_reading
    client.resume(HOLD_BUSY)
    client.resume(HOLD_BUSY)
    assert len(client.packets) == 3
    assert client.transport.is_reading


def test_a_callback_stops_when_its_share_of_work_is_used_up() -> None:
    bench = Bench(work_max=100)
    listeners = [subscriber(bench) for _ in range(10)]
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(frames(*(Publish("t", b"%d" % i) for i in range(100))))

    assert client.holds == [HOLD_WORK]
    assert 0 < len(listeners[0].sent()) < 30
    turns = 0
    while client.hold_bits:
        client.resume(HOLD_WORK)
        turns += 1
    assert turns >= 5
    for listener in listeners[1:]:
        assert [int(packet.payload) for packet in listener.sent() if isinstance(packet, Publish)] == list(range(100))


def test_packets_passed_to_the_broker_count_as_work() -> None:
    bench = Bench(work_max=1000)
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(frames(Unsubscribe(1, ["a"])) * 100)

    assert len(client.packets) < 20
    assert client.hold_bits == HOLD_WORK


def test_work_is_counted_for_one_callback_only() -> None:
    bench = Bench(work_max=1000)
    client = bench.channel(bench.flow("client"), MQTT5)

    for _ in range(100):
        client.read(frames(Unsubscribe(1, ["a"])))

    assert client.holds == []


# A full queue holds its publishers


def test_a_publisher_is_held_while_a_subscribers_queue_is_half_full(bench: Bench) -> None:
    slow = bench.flow("slow", messages_max=10)
    listener = bench.channel(slow, MQTT5, window=1)
    bench.routes.add(Subscription(slow, b"t", 1))
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(frames(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(20))))

    assert client.hold_bits == HOLD_QUEUE
    assert client.held_by is slow
    assert slow.queue_messages() == 6
    assert bench.drops == []

    got: list[bytes] = []
    while True:
        packets = [packet for packet in listener.sent() if isinstance(packet, Publish)]
        if not packets:
            break
        for packet in packets:
            got.append(packet.payload)
            listener.read(frames(Puback(packet.packet_id or 0)))
        if client.releases:
            client.releases = 0
            client.is_waiting = False
            client.resume(HOLD_QUEUE)
    assert got == [b"%d" % i for i in range(20)]
    assert bench.drops == []


def test_a_client_that_fills_its_own_queue_is_not_held(bench: Bench) -> None:
    own = bench.flow("own", messages_max=4)
    client = bench.channel(own, MQTT5, window=1)
    bench.routes.add(Subscription(own, b"t", 1))

    client.read(frames(*(Publish("t", b"", 1, packet_id=i + 1) for i in range(20))))

    assert client.hold_bits == 0
    assert len(bench.drops) == 20 - 1 - 4


def test_two_clients_that_fill_each_others_queue_are_not_both_held(bench: Bench) -> None:
    flows = [bench.flow(name, messages_max=4) for name in ("a", "b")]
    clients = [bench.channel(flow, MQTT5, window=1) for flow in flows]
    bench.routes.add(Subscription(flows[0], b"to a", 1))
    bench.routes.add(Subscription(flows[1], b"to b", 1))

    clients[0].read(frames(*(Publish("to b", b"", 1, packet_id=i + 1) for i in range(8))))
    assert clients[0].hold_bits == HOLD_QUEUE
    clients[1].read(frames(*(Publish("to a", b"", 1, packet_id=i + 1) for i in range(8))))

    assert clients[0].releases or not clients[1].hold_bits & HOLD_QUEUE


def test_a_flow_congested_by_others_does_not_hold_this_client(bench: Bench) -> None:
    slow = bench.flow("slow", messages_max=2)
    bench.channel(slow, MQTT5, window=1)
    listener = subscriber(bench, "other")
    bench.state.congested = slow  # left by a will or a retained message, with nobody to hold
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(frames(Publish("other", b"", 1, packet_id=1)))

    assert client.hold_bits == 0
    assert len(listener.sent()) == 1


# Rates, counts, traces


def test_rates_count_what_was_held_back_too(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.is_metered = True
    client.hold_on_packet = HOLD_BUSY
    stream = frames(Publish("t", b""), Subscribe(1, [SubscribeOption("a", 0)]), Publish("t", b""), Publish("t", b""))

    client.read(stream)
    client.resume(HOLD_BUSY)

    assert sum(messages for messages, _ in client.metered) == 3
    assert sum(size for _, size in client.metered) == len(stream)


def test_a_connection_counts_its_own_bytes_and_messages(bench: Bench) -> None:
    listener = subscriber(bench, version=MQTT5)
    client = bench.channel(bench.flow("client"), MQTT311)
    stream = frames(Publish("t", b"x"), Publish("t", b"y", 1, packet_id=1), Pingreq(), version=MQTT311)

    client.read(stream)

    assert (client.messages_received, client.bytes_received) == (2, len(stream))
    assert (client.messages_sent, client.bytes_sent) == (0, len(client.transport.written))
    assert (listener.messages_sent, listener.bytes_sent) == (2, len(listener.transport.written))


def test_a_traced_client_shows_every_frame_both_ways(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.is_traced = True

    client.read(frames(Pingreq(), Publish("t", b"x", 1, packet_id=7)))

    assert [(inbound, frame[0] >> 4) for inbound, frame in client.traced] == [(True, 12), (False, 13), (True, 3), (False, 4)]
    assert client.traced[2][1] == frames(Publish("t", b"x", 1, packet_id=7))


# Writing


def test_frames_wait_in_the_outbox_while_the_transport_is_paused(bench: Bench) -> None:
    listener = subscriber(bench)
    client = bench.channel(bench.flow("client"), MQTT5)
    listener.pause_writing()

    client.read(frames(Publish("t", b"1"), Publish("t", b"2")))
    assert listener.sent() == []
    assert listener.outbox.size > 0

    listener.resume_writing()
    assert [packet.payload for packet in listener.sent() if isinstance(packet, Publish)] == [b"1", b"2"]


def test_room_is_reported_only_to_channels_that_want_it() -> None:
    bench = Bench(outbox_bytes_max=1000)
    client = bench.channel(bench.flow("client"), MQTT5)
    client.pause_writing()
    assert not client.has_room()

    client.resume_writing()
    assert client.has_room()
    assert client.rooms == 0
    client.wants_room = True
    client.resume_writing()
    client.read(frames(Pubcomp(9)))
    assert client.rooms == 2

    client.pause_writing()
    client.send(bytes(500))
    client.resume_writing()
    client.send(bytes(499))
    assert client.has_room()
    client.send(bytes(1))
    assert not client.has_room()


def test_many_messages_in_one_read_are_one_write_to_each_client(bench: Bench) -> None:
    writes: list[int] = []
    listener = subscriber(bench)
    listener.transport.write = lambda data: writes.append(len(data))
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(frames(*(Publish("t", b"%d" % i) for i in range(50))))

    assert len(writes) == 1


def test_a_closed_channel_stays_held(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.hold(HOLD_RATE)
    client.hold(HOLD_CLOSED)
    client.feed(PING)

    client.resume(HOLD_RATE)

    assert client.sent() == []
    assert not client.transport.is_reading


@pytest.mark.parametrize("kind", [Pubrec, Pubrel, Pubcomp, Puback])
def test_stray_acknowledgements_are_counted_and_answered_where_the_protocol_says_so(bench: Bench, kind: type[Pubrel]) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(frames(kind(7)))

    answers: dict[type, list[Packet]] = {Pubrec: [Pubrel(7, 0x92)], Pubrel: [Pubcomp(7, 0x92)]}
    assert client.sent() == answers.get(kind, [])
    assert bench.state.counters.stray_acks == 1
    assert client.violations == []


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize(("qos", "kind"), [(1, Pubrec), (1, Pubcomp), (2, Puback), (2, Pubcomp)])
def test_an_acknowledgement_of_the_wrong_type_is_a_violation(bench: Bench, version: int, qos: int, kind: type[Pubrel]) -> None:
    listener = subscriber(bench, qos=qos, version=version)
    bench.channel(bench.flow("client"), MQTT5).read(frames(Publish("t", b"x", qos, packet_id=1)))
    listener.sent()

    listener.read(frames(kind(1)))

    assert listener.violations == [0x82]
    assert listener.sent() == []
    assert present(listener.flow).inflight_messages() == 1


def test_a_repeated_pubrec_is_answered_and_is_not_a_violation(bench: Bench) -> None:
    listener = subscriber(bench, qos=2)
    bench.channel(bench.flow("client"), MQTT5).read(frames(Publish("t", b"x", 2, packet_id=1)))
    listener.sent()

    listener.read(frames(Pubrec(1), Pubrec(1), Pubrec(1, 0x80), Pubcomp(1)))

    assert listener.sent() == [Pubrel(1), Pubrel(1)]
    assert listener.violations == []
    assert present(listener.flow).inflight_messages() == 0


def test_an_acknowledgement_of_a_message_sent_on_an_earlier_connection_is_not_a_violation(bench: Bench) -> None:
    listener = subscriber(bench, qos=2)
    bench.channel(bench.flow("client"), MQTT5).read(frames(Publish("t", b"x", 2, packet_id=1)))
    present(listener.flow).detach()
    back = bench.channel(listener.flow, MQTT5, window=0)  # without a window nothing is sent again yet

    back.read(frames(Puback(1)))

    assert listener.violations == back.violations == []
    assert bench.state.counters.stray_acks == 1
