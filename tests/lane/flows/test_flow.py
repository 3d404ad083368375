"""Single rules of a session's flow that the model does not meet: expiry, sizes, holding, withdrawing."""

from __future__ import annotations

from time import monotonic

import pytest

from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, MQTT311, Packet, Puback, Publish, Pubrec, Pubrel
from tests.support.simulator.lane import Bench, FakeChannel


@pytest.fixture
def bench() -> Bench:
    return Bench()


def message(name: str, qos: int = 1, payload: bytes = b"", expires_in: float | None = None) -> Message:
    made = Message(name.encode(), payload, qos, False, "p")
    if expires_in is not None:
        made.set_properties(b"\x02\x00\x00\x03\xe8", monotonic() + expires_in, 1)
    return made


def deliver(flow: Flow, *messages: Message) -> None:
    for each in messages:
        flow.deliver(each, Subscription(flow, b"#", 2), each.qos, False)


def topics(packets: list[Packet]) -> list[str]:
    return [packet.topic for packet in packets if isinstance(packet, Publish)]


def received(bench: Bench, channel: FakeChannel) -> list[Packet]:
    bench.lane.flush()
    return channel.sent()


def test_a_message_above_the_clients_maximum_is_dropped_and_the_next_one_goes_out(bench: Bench) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5)
    channel.frame_max_out = 50

    deliver(flow, message("large", payload=bytes(50)), message("small"))

    assert topics(received(bench, channel)) == ["small"]
    assert bench.drops == [("too_large", "c", b"large")]
    assert (flow.inflight_messages(), flow.outstanding, flow.dropped) == (1, 1, 1)


def test_inflight_messages_too_large_for_the_next_connection_are_dropped(bench: Bench) -> None:
    flow = bench.flow()
    bench.channel(flow, MQTT5)
    deliver(flow, message("large", payload=bytes(50)), message("small"))
    flow.detach()

    channel = FakeChannel(bench.lane, MQTT5)
    channel.frame_max_out = 50
    flow.attach(channel, 10)

    assert topics(received(bench, channel)) == ["small"]
    assert bench.drops == [("too_large", "c", b"large")]
    assert flow.inflight_messages() == 1


def test_a_message_that_expires_in_the_queue_is_dropped(bench: Bench) -> None:
    flow = bench.flow()
    deliver(flow, message("over", expires_in=-0.001), message("fresh", expires_in=100))

    channel = bench.channel(flow, MQTT5)

    (publish,) = channel.sent()
    assert isinstance(publish, Publish)
    assert publish.topic == "fresh"
    assert publish.properties.message_expiry_interval == 100
    assert bench.drops == [("expired", "c", b"over")]
    assert bench.state.counters.dropped_expired == 1
    assert (flow.queue_messages(), flow.queue_bytes) == (0, 0)


def test_a_message_sent_at_once_keeps_its_expiry(bench: Bench) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5)

    deliver(flow, message("t", expires_in=0.5))

    (publish,) = received(bench, channel)
    assert isinstance(publish, Publish)
    assert publish.properties.message_expiry_interval == 1000


def test_inflight_messages_do_not_expire_and_have_their_remaining_expiry(bench: Bench) -> None:
    flow = bench.flow()
    bench.channel(flow, MQTT5)
    deliver(flow, message("over", expires_in=-5), message("t", expires_in=50))
    flow.detach()

    channel = bench.channel(flow, MQTT5)

    expiries = [packet.properties.message_expiry_interval for packet in channel.sent() if isinstance(packet, Publish)]
    assert expiries == [0, 50]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_late_delivery_has_its_remaining_expiry_or_is_dropped(bench: Bench, qos: int) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5)
    subscription = Subscription(flow, b"#", 2)

    flow.deliver_late(message("t", expires_in=50), subscription, qos, True)
    flow.deliver_late(message("over", expires_in=-1), subscription, qos, True)
    flow.deliver_late(message("always"), subscription, qos, True)

    packets = [packet for packet in received(bench, channel) if isinstance(packet, Publish)]
    assert [(packet.topic, packet.properties.message_expiry_interval) for packet in packets] == [("t", 50), ("always", None)]
    assert all(packet.retain for packet in packets)
    assert bench.drops == [("expired", "c", b"over")]


def test_qos_0_is_queued_for_an_offline_client_only_if_configured(bench: Bench) -> None:
    keeping, letting_go = bench.flow("keeping", qos0=True), bench.flow("letting go")

    deliver(keeping, message("t", 0))
    deliver(letting_go, message("t", 0))

    assert topics(bench.channel(keeping).sent()) == ["t"]
    assert topics(bench.channel(letting_go).sent()) == []
    assert bench.drops == [("absent", "letting go", b"t")]


def test_qos_0_is_dropped_when_the_client_does_not_read() -> None:
    bench = Bench(outbox_bytes_max=100)
    flow = bench.flow()
    channel = bench.channel(flow)
    channel.pause_writing()

    deliver(flow, *(message(str(i), 0, bytes(60)) for i in range(4)))

    assert [topic for _, _, topic in bench.drops] == [b"2", b"3"]
    assert bench.state.counters.dropped_outbox_full == 2


def test_the_newest_is_dropped_when_the_queue_is_full(bench: Bench) -> None:
    by_count, by_bytes = bench.flow("count", messages_max=2), bench.flow("bytes", bytes_max=20)

    deliver(by_count, *(message(name) for name in "abc"))
    deliver(by_bytes, *(message(name, payload=bytes(9)) for name in "abc"))

    assert topics(bench.channel(by_count).sent()) == ["a", "b"]
    assert topics(bench.channel(by_bytes).sent()) == ["a", "b"]
    assert bench.drops == [("queue_full", "count", b"c"), ("queue_full", "bytes", b"c")]


def test_publishers_wait_from_a_half_full_queue_until_it_has_drained(bench: Bench) -> None:
    flow = bench.flow(messages_max=10)
    channel = bench.channel(flow, MQTT5, window=1)
    publisher = bench.channel(bench.flow("p"))

    deliver(flow, *(message(str(i)) for i in range(6)))
    before = bench.state.congested
    deliver(flow, message("6"))
    assert (before, bench.state.congested) == (None, flow)
    flow.hold(publisher)

    channel.read(encode(Puback(1), MQTT5))

    assert flow.queue_messages() == 5
    assert publisher.releases == 1


def test_the_queue_of_an_absent_client_holds_no_publisher(bench: Bench) -> None:
    flow = bench.flow(messages_max=2)

    deliver(flow, *(message(str(i)) for i in range(5)))

    assert flow.is_congested()
    assert bench.state.congested is None


def test_waiting_publishers_resume_when_the_subscriber_leaves(bench: Bench) -> None:
    flow = bench.flow(messages_max=2)
    bench.channel(flow, window=1)
    publisher = bench.channel(bench.flow("p"))
    deliver(flow, *(message(str(i)) for i in range(3)))
    flow.hold(publisher)

    flow.detach()

    assert publisher.releases == 1


def test_a_stalled_queue_holds_no_publisher_until_it_moves(bench: Bench) -> None:
    flow = bench.flow(messages_max=4)
    channel = bench.channel(flow, MQTT5, window=1)
    deliver(flow, *(message(str(i)) for i in range(4)))
    flow.is_stalled = True
    bench.state.congested = None

    deliver(flow, message("4"))
    assert bench.state.congested is None

    for packet_id in (1, 2):
        channel.read(encode(Puback(packet_id), MQTT5))
    assert not flow.is_stalled


def test_withdrawing_frees_the_window_and_the_queue(bench: Bench) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5, window=2)
    deliver(flow, *(message(name, payload=b"x") for name in "abcd"))

    taken = flow.withdraw(lambda delivery: delivery.message is not None and delivery.message.topic in (b"a", b"c"))

    assert taken == 2
    assert (flow.outstanding, flow.queue_messages(), flow.queue_bytes) == (1, 1, 2)
    assert (bench.state.queued_messages, bench.state.queued_bytes) == (1, 2)
    flow.pump()
    assert topics(received(bench, channel)) == ["a", "b", "d"]


def test_a_discarded_flow_gives_back_everything_it_counted(bench: Bench) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5, window=2)
    deliver(flow, message("released", 2), message("in flight"), message("queued"), message("queued too"))
    channel.read(encode(Pubrec(1), MQTT5))
    flow.detach()

    flow.discard()

    counters = bench.state.counters
    assert (bench.state.queued_messages, bench.state.queued_bytes, flow.queue_bytes) == (0, 0, 0)
    assert counters.publish_qos1_sent + counters.publish_qos2_sent - counters.acked - counters.inflight_lost == 0
    assert counters.dropped_session_ended == flow.dropped == 3  # what was released has reached the client


def test_packet_ids_wrap_around_and_skip_those_in_use(bench: Bench) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5, window=10)
    deliver(flow, message("stays"))
    seen: list[int] = []

    for _ in range(65_535):
        deliver(flow, message("t"))
        (*_, publish) = received(bench, channel)
        assert isinstance(publish, Publish)
        assert publish.packet_id is not None
        seen.append(publish.packet_id)
        flow.on_puback(publish.packet_id, 0)

    assert seen == [*range(2, 65_536), 2]


def test_an_acknowledgement_of_the_wrong_kind_settles_nothing(bench: Bench) -> None:
    flow = bench.flow()
    bench.channel(flow)
    deliver(flow, message("one", 1), message("two", 2))

    assert not flow.on_pubrec(1, 0)
    assert not flow.on_pubcomp(1)
    assert not flow.on_puback(2, 0)
    assert not flow.on_pubcomp(2)
    assert not flow.on_puback(3, 0)
    assert flow.inflight_messages() == 2
    assert flow.on_pubrec(2, 0)
    assert flow.on_pubrec(2, 0), "a repeated PUBREC is answered like the first"
    assert flow.on_pubcomp(2)
    assert flow.on_puback(1, 0)
    assert flow.inflight_messages() == 0


def test_a_released_message_is_resumed_with_pubrel(bench: Bench) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5)
    deliver(flow, message("two", 2), message("one", 1))
    channel.read(encode(Pubrec(1), MQTT5))
    flow.detach()

    first, second = bench.channel(flow, MQTT5).sent()

    assert first == Pubrel(1)
    assert isinstance(second, Publish)
    assert (second.topic, second.dup, second.packet_id) == ("one", True, 2)


def test_an_acknowledgement_of_a_message_not_yet_resent_does_not_open_the_window(bench: Bench) -> None:
    flow = bench.flow()
    bench.channel(flow, MQTT5)
    deliver(flow, *(message(name) for name in "abc"))
    flow.detach()
    channel = bench.channel(flow, MQTT5, window=1)
    assert topics(channel.sent()) == ["a"]

    channel.read(encode(Puback(3), MQTT5))
    assert topics(channel.sent()) == []
    assert flow.outstanding == 1
    channel.read(encode(Puback(1), MQTT5))
    assert topics(channel.sent()) == ["b"]
    channel.read(encode(Puback(2), MQTT5))
    assert (flow.outstanding, flow.inflight_messages()) == (0, 0)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_queue_larger_than_the_outbox_is_sent_without_acknowledgements(qos: int) -> None:
    bench = Bench(outbox_bytes_max=100)
    flow = bench.flow(qos0=True)
    deliver(flow, *(message(str(i), qos, bytes(40)) for i in range(20)))

    channel = bench.channel(flow, MQTT5)

    assert topics(channel.sent()) == [str(i) for i in range(20)]


def test_a_message_that_waited_only_for_the_outbox_is_sent_after_the_flush() -> None:
    bench = Bench(outbox_bytes_max=100)
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5)

    deliver(flow, message("1", 0, bytes(150)), message("2", 1), message("3", 1))

    assert topics(received(bench, channel)) == ["1", "2", "3"]
    assert bench.drops == []


def test_packet_ids_of_received_qos_2_messages_are_kept_until_pubrel(bench: Bench) -> None:
    flow = bench.flow()

    assert flow.receive(5)
    assert not flow.receive(5)
    assert flow.is_receiving(5)
    assert flow.received_ids() == [5]
    assert flow.forget_received(5)
    assert not flow.forget_received(5)
    assert flow.receive(5)


def test_has_place_says_whether_the_queue_would_take_a_message(bench: Bench) -> None:
    flow = bench.flow(messages_max=2, bytes_max=10)

    assert flow.has_place(message("t", payload=bytes(9)))
    assert not flow.has_place(message("t", payload=bytes(10)))
    deliver(flow, message("a"))
    assert flow.has_place(message("t", payload=bytes(8)))
    assert not flow.has_place(message("t", payload=bytes(9)))
    deliver(flow, message("b"))
    assert not flow.has_place(message("c"))


def test_mqtt_3_clients_get_no_properties(bench: Bench) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT311)

    deliver(flow, message("t", 1, b"x", expires_in=10))

    bench.lane.flush()
    assert bytes(channel.transport.written) == encode(Publish("t", b"x", 1, packet_id=1), MQTT311)


def test_a_late_message_with_expiry_waits_behind_messages_to_be_resent(bench: Bench) -> None:
    flow = bench.flow()
    bench.channel(flow, MQTT5)
    deliver(flow, *(message(f"old/{number}", payload=bytes(100)) for number in range(4)))
    flow.detach()
    bench.state.outbox_bytes_max = 200
    channel = FakeChannel(bench.lane, MQTT5)
    channel.flow, channel.is_open = flow, True
    flow.attach(channel, 10)  # the outbox is full after two

    late = message("late", expires_in=100)
    flow.deliver_late(late, Subscription(flow, b"#", 2), 1, True)

    assert topics(received(bench, channel)) == ["old/0", "old/1", "old/2", "old/3", "late"]


def test_a_publisher_is_released_once_and_then_forgotten(bench: Bench) -> None:
    flow = bench.flow(messages_max=2)
    publisher = FakeChannel(bench.lane)
    flow.hold(publisher)
    flow.hold(publisher)

    flow.release_publishers()
    flow.hold(publisher)
    flow.forget_publisher(publisher)
    flow.release_publishers()

    assert publisher.releases == 1


def test_withdrawing_a_queue_releases_its_publishers_and_may_hold_them_again(bench: Bench) -> None:
    flow = bench.flow(messages_max=4)
    bench.channel(flow, MQTT5, window=1)
    deliver(flow, *(message("t") for _ in range(4)))  # one is in flight, three wait: more than half
    publisher = FakeChannel(bench.lane)
    flow.hold(publisher)
    flow.is_stalled = True

    flow.withdraw(lambda delivery: not delivery.is_sent)

    assert publisher.releases == 1
    assert not flow.is_stalled
    assert flow.congested_at == 0.0


# Bytes in flight


@pytest.mark.parametrize("qos", [1, 2])
def test_inflight_messages_are_bounded_in_bytes_too(bench: Bench, qos: int) -> None:
    flow = Flow("c", bench.state, 100, 2500, False)
    channel = FakeChannel(bench.lane, MQTT5)
    flow.attach(channel, 100)
    deliver(flow, *(message(str(number), qos, bytes(999)) for number in range(5)))

    # So many that the bound is reached; at least one, however large it is.
    assert topics(received(bench, channel)) == ["0", "1", "2"]
    assert flow.inflight_bytes == 3000
    flow.on_puback(1, 0) if qos == 1 else flow.on_pubrec(1, 0)
    if qos == 2:
        flow.pump()

    assert topics(received(bench, channel)) == ["3"]
    assert flow.inflight_bytes == 3000


def test_inflight_bytes_are_right_after_every_outcome_of_a_message(bench: Bench) -> None:
    flow = Flow("c", bench.state, 100, 100_000, False)
    channel = FakeChannel(bench.lane, MQTT5)
    flow.attach(channel, 100)
    deliver(flow, *(message(str(number), 1 + number % 2, bytes(999)) for number in range(6)))
    assert flow.inflight_bytes == 6000
    flow.on_puback(1, 0x80)
    flow.on_pubrec(2, 0x80)
    flow.on_pubrec(4, 0)
    assert flow.inflight_bytes == 3000
    flow.on_pubcomp(4)
    assert flow.inflight_bytes == 3000
    flow.detach()
    again = FakeChannel(bench.lane, MQTT5)
    again.frame_max_out = 50
    flow.attach(again, 100)  # where they are too large
    assert flow.inflight_bytes == 0
    again.frame_max_out = 10_000
    deliver(flow, *(message(str(number), 1, bytes(999)) for number in range(3)))
    flow.withdraw(lambda delivery: delivery.message is not None and delivery.message.topic == b"1")
    assert flow.inflight_bytes == 2000
    flow.discard()
    assert flow.inflight_bytes == 0
