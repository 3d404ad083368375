"""From a client's PUBLISH to what each subscriber gets: every combination of versions, QoS and options, aliases, access."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, MQTT311, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from tests.mqtt.strategies import publishes
from tests.support.simulator.lane import Bench, FakeChannel


@pytest.fixture
def bench() -> Bench:
    return Bench()


def publishes_of(channel: FakeChannel) -> list[Publish]:
    return [packet for packet in channel.sent() if isinstance(packet, Publish)]


def send(channel: FakeChannel, *packets: Packet) -> None:
    channel.read(b"".join(encode(packet, channel.version) for packet in packets))


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@given(data=st.data())
def test_each_subscriber_gets_what_its_version_and_options_ask_for(version: int, data: st.DataObject) -> None:
    packet = data.draw(publishes(version).filter(lambda packet: bool(packet.topic) and not packet.topic.startswith("$")))
    packet.properties = replace(packet.properties, subscription_identifiers=())
    packet.retain = False
    bench = Bench()
    listeners: list[tuple[FakeChannel, int, tuple[int, ...]]] = []
    for their_version, qos, identifier in itertools.product((MQTT311, MQTT5), (0, 1, 2), (b"", b"\x0b\x07")):
        flow = bench.flow(f"{their_version} {qos} {identifier!r}")
        channel = bench.channel(flow, their_version)
        bench.routes.add(Subscription(flow, b"#", qos, identifiers=identifier))
        listeners.append((channel, qos, (7,) if identifier else ()))
    client = bench.channel(bench.flow("client"), version)
    client.alias_in_max = 65535

    send(client, packet)

    for channel, qos, identifiers in listeners:
        (got,) = publishes_of(channel)
        assert (got.topic, got.payload, got.qos) == (packet.topic, packet.payload, min(qos, packet.qos))
        assert not got.dup
        assert not got.retain
        expected = NO_PROPERTIES
        if channel.version == MQTT5:
            expected = replace(packet.properties, topic_alias=None, subscription_identifiers=identifiers)
        assert got.properties == expected
    assert bench.state.counters.delivered == len(listeners)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(("no_local", "count"), [(True, 0), (False, 1)])
def test_no_local_excludes_the_clients_own_messages(bench: Bench, qos: int, no_local: bool, count: int) -> None:
    own = bench.flow("own")
    client = bench.channel(own, MQTT5)
    bench.routes.add(Subscription(own, b"t", 2, no_local))

    send(client, Publish("t", b"", qos, packet_id=1 if qos else None))

    assert len(publishes_of(client)) == count
    assert bench.state.counters.dropped_no_local == 1 - count


def test_no_local_compares_client_ids_live_as_it_does_for_the_log(bench: Bench) -> None:
    before, own = bench.flow("own"), bench.flow("own")  # its last session, whose will is published, and its new one
    channel = bench.channel(own, MQTT5)
    bench.routes.add(Subscription(own, b"t", 1, no_local=True))
    route = bench.routes.resolve(b"t")
    assert route is not None

    assert bench.lane.publish(Message(b"t", b"will", 1, False, "own"), route, before) == 0
    bench.lane.flush()

    assert publishes_of(channel) == []
    assert bench.state.counters.dropped_no_local == 1


@pytest.mark.parametrize(("publisher", "count"), [("own", 0), ("other", 1)])
def test_no_local_goes_by_the_publisher_of_the_message_without_a_flow(bench: Bench, publisher: str, count: int) -> None:
    own = bench.flow("own")
    channel = bench.channel(own, MQTT5)
    bench.routes.add(Subscription(own, b"t", 1, no_local=True))
    route = bench.routes.resolve(b"t")
    assert route is not None

    assert bench.lane.publish(Message(b"t", b"", 1, False, publisher), route, None) == count
    bench.lane.flush()

    assert len(publishes_of(channel)) == count


def test_a_deliver_hook_is_called_once_per_copy(bench: Bench) -> None:
    flows = {name: bench.flow(name) for name in ("a", "b", "c", "own")}
    channels = {name: bench.channel(flow, MQTT5) for name, flow in flows.items()}
    bench.routes.add(Subscription(flows["a"], b"t", 2, retain_as_published=True))
    bench.routes.add(Subscription(flows["b"], b"t", 1))
    bench.routes.add(Subscription(flows["c"], b"t", 2))
    bench.routes.add(Subscription(flows["own"], b"t", 2, no_local=True))
    route = bench.routes.resolve(b"t")
    assert route is not None
    asked: list[str] = []

    def ask(message: Message, client_id: str) -> Message | None:
        asked.append(client_id)
        return None if client_id == "c" else Message(b"t", client_id.encode(), 2, True, "hook")

    reached = bench.lane.publish_asking(Message(b"t", b"x", 1, False, "own"), route, flows["own"], ask)
    bench.lane.flush()

    got = {name: [(each.payload, each.qos, each.retain) for each in publishes_of(channel)] for name, channel in channels.items()}
    assert got == {"a": [(b"a", 2, True)], "b": [(b"b", 1, False)], "c": [], "own": []}
    assert (reached, sorted(asked)) == (2, ["a", "b", "c"])
    assert (bench.state.counters.delivered, bench.state.counters.dropped_no_local) == (2, 1)


@pytest.mark.parametrize(("as_published", "retain"), [(True, True), (False, False)])
def test_the_retain_flag_reaches_subscribers_that_asked_for_it(bench: Bench, as_published: bool, retain: bool) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5)
    bench.routes.add(Subscription(flow, b"t", 1, retain_as_published=as_published))
    route = bench.routes.resolve(b"t")
    assert route is not None

    assert bench.lane.publish(Message(b"t", b"x", 1, True, "p"), route, None) == 1
    bench.lane.flush()

    (got,) = publishes_of(channel)
    assert got.retain == retain


def test_overlapping_subscriptions_get_one_copy_with_all_identifiers(bench: Bench) -> None:
    flow = bench.flow()
    channel = bench.channel(flow, MQTT5)
    for topic_filter, qos, identifier in ((b"#", 0, b"\x0b\x01"), (b"a/+", 2, b"\x0b\x02"), (b"a/b", 1, b"\x0b\x03")):
        bench.routes.add(Subscription(flow, topic_filter, qos, identifiers=identifier))
    client = bench.channel(bench.flow("client"), MQTT5)

    send(client, Publish("a/b", b"x", 2, packet_id=1))

    (got,) = publishes_of(channel)
    assert got.qos == 2
    assert sorted(got.properties.subscription_identifiers) == [1, 2, 3]


def test_the_expiry_of_a_message_runs_from_its_arrival(bench: Bench) -> None:
    flow = bench.flow()
    bench.routes.add(Subscription(flow, b"t", 1))
    client = bench.channel(bench.flow("client"), MQTT5)

    for expiry in (0, 100):
        send(client, Publish("t", b"%d" % expiry, 1, packet_id=1, properties=Properties(message_expiry_interval=expiry)))

    got = publishes_of(bench.channel(flow, MQTT5))
    assert [(packet.payload, packet.properties.message_expiry_interval) for packet in got] == [(b"100", 100)]


# Acknowledging the publisher


@pytest.mark.parametrize(("version", "reason"), [(MQTT5, 0x10), (MQTT311, 0)])
def test_a_message_without_subscribers_is_acknowledged_and_counted(bench: Bench, version: int, reason: int) -> None:
    client = bench.channel(bench.flow("client"), version)

    send(client, Publish("t", b"", 1, packet_id=1), Publish("t", b"", 2, packet_id=2), Publish("t", b""))

    assert client.sent() == [Puback(1, reason), Pubrec(2, reason)]
    assert bench.state.counters.dropped_no_subscribers == 3


def test_a_qos_2_packet_id_is_accepted_once_until_pubrel(bench: Bench) -> None:
    flow = bench.flow()
    listener = bench.channel(flow, MQTT5)
    bench.routes.add(Subscription(flow, b"t", 0))
    client = bench.channel(bench.flow("client"), MQTT5)
    publish = Publish("t", b"x", 2, packet_id=5)

    send(client, publish, replace(publish, dup=True), publish)
    assert client.sent() == [Pubrec(5)] * 3
    assert len(publishes_of(listener)) == 1

    send(client, Pubrel(5), Pubrel(5), publish)
    assert client.sent() == [Pubcomp(5), Pubcomp(5, 0x92), Pubrec(5)]
    assert len(publishes_of(listener)) == 1


def test_qos_2_state_outlives_the_connection(bench: Bench) -> None:
    flow = bench.flow("client")
    listening = bench.flow()
    listener = bench.channel(listening, MQTT5)
    bench.routes.add(Subscription(listening, b"t", 0))
    send(bench.channel(flow, MQTT5), Publish("t", b"x", 2, packet_id=5))
    flow.detach()

    again = bench.channel(flow, MQTT5)
    send(again, Publish("t", b"x", 2, dup=True, packet_id=5))

    assert again.sent() == [Pubrec(5)]
    assert len(publishes_of(listener)) == 1


def test_exceeding_the_receive_maximum_is_a_violation(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.receive_maximum = 2

    send(client, *(Publish("t", b"", 2, packet_id=i) for i in (1, 2, 2)))
    assert client.violations == []
    send(client, Publish("t", b"", 2, packet_id=3))

    assert client.violations == [0x93]


def test_a_message_that_the_broker_rejects_is_acknowledged_with_its_reason(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.publish_code = 0x97

    send(client, Publish("t", b"x", 1, retain=True, packet_id=1), Publish("t", b"x", 2, retain=True, packet_id=2))
    send(client, Publish("t", b"x", 2, retain=True, packet_id=2))

    assert client.sent() == [Puback(1, 0x97), Pubrec(2, 0x97), Pubrec(2, 0x97)]
    assert len(client.published) == 3, "a refused id is free at once"


def test_a_rejected_mqtt_3_message_is_acknowledged_as_usual(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT311)
    client.publish_code = 0x97

    send(client, Publish("t", b"x", 2, retain=True, packet_id=2), Pubrel(2))

    assert client.sent() == [Pubrec(2), Pubcomp(2)]


# Topic aliases of the client


def aliased(topic: str, alias: int, payload: bytes = b"", qos: int = 0, packet_id: int | None = None) -> Publish:
    return Publish(topic, payload, qos, packet_id=packet_id, properties=Properties(topic_alias=alias))


def test_a_topic_alias_has_the_topic_it_was_last_set_to(bench: Bench) -> None:
    flow = bench.flow()
    listener = bench.channel(flow, MQTT5)
    bench.routes.add(Subscription(flow, b"#", 1))
    client = bench.channel(bench.flow("client"), MQTT5)
    client.alias_in_max = 2

    send(client, aliased("a", 1), aliased("", 1), aliased("b", 2), aliased("c", 1), aliased("", 2), aliased("", 1))

    assert [packet.topic for packet in publishes_of(listener)] == ["a", "a", "b", "c", "b", "c"]


@pytest.mark.parametrize(("packet", "reason"), [(aliased("t", 3), 0x94), (aliased("", 2), 0x82), (aliased("", 3), 0x94)])
def test_an_alias_above_the_maximum_or_never_set_ends_the_connection(bench: Bench, packet: Publish, reason: int) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.alias_in_max = 2

    send(client, aliased("t", 1), packet)

    assert client.violations == [reason]


def test_the_topics_of_all_aliases_have_a_bound_in_bytes_together(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    client.alias_in_max = 64
    longest = "x" * 65535

    for _ in range(5):
        send(client, aliased(longest, 1), *(aliased("x" * 512, alias) for alias in range(2, 65)), aliased("", 1))
    assert client.violations == [], "one may be as long as a topic can be, and an alias may be set anew"
    send(client, aliased(longest, 2))

    assert client.violations == [0x97]


def test_a_long_topic_gets_no_alias_towards_a_client(bench: Bench) -> None:
    flow = bench.flow()
    listener = bench.channel(flow, MQTT5)
    listener.allow_aliases(10)
    bench.routes.add(Subscription(flow, b"#", 0))
    client = bench.channel(bench.flow("client"), MQTT5)

    send(client, *(Publish("x" * size, b"") for size in (513, 512, 512, 513)))

    assert [(len(each.topic), each.properties.topic_alias) for each in publishes_of(listener)] == [
        (513, None), (512, 1), (0, 1), (513, None),
    ]  # fmt: skip


def test_a_repeated_qos_2_message_still_sets_its_alias(bench: Bench) -> None:
    flow = bench.flow("client")
    listening = bench.flow()
    listener = bench.channel(listening, MQTT5)
    bench.routes.add(Subscription(listening, b"t", 0))
    first = bench.channel(flow, MQTT5)
    first.alias_in_max = 1
    send(first, aliased("t", 1, b"1", 2, 5))
    flow.detach()

    again = bench.channel(flow, MQTT5)
    again.alias_in_max = 1
    send(again, replace(aliased("t", 1, b"1", 2, 5), dup=True), aliased("", 1, b"2"))

    assert again.violations == []
    assert [packet.payload for packet in publishes_of(listener)] == [b"1", b"2"]


def test_aliases_end_with_the_connection(bench: Bench) -> None:
    flow = bench.flow("client")
    first = bench.channel(flow, MQTT5)
    first.alias_in_max = 1
    send(first, aliased("t", 1))
    flow.detach()

    second = bench.channel(flow, MQTT5)
    second.alias_in_max = 1
    send(second, aliased("", 1))

    assert second.violations == [0x82]


# Topic aliases towards a client


def test_an_outgoing_topic_is_sent_once_and_then_by_alias(bench: Bench) -> None:
    flow = bench.flow()
    listener = bench.channel(flow, MQTT5)
    listener.allow_aliases(2)
    bench.routes.add(Subscription(flow, b"#", 1))
    client = bench.channel(bench.flow("client"), MQTT5)

    send(client, *(Publish(topic, b"x") for topic in ("a", "b", "c", "a", "b", "c")))

    got = [(packet.topic, packet.properties.topic_alias) for packet in publishes_of(listener)]
    assert got == [("a", 1), ("b", 2), ("c", None), ("", 1), ("", 2), ("c", None)]


def test_an_alias_whose_first_message_was_too_large_is_not_used(bench: Bench) -> None:
    flow = bench.flow()
    listener = bench.channel(flow, MQTT5)
    listener.allow_aliases(5)
    listener.frame_max_out = 50
    bench.routes.add(Subscription(flow, b"t", 1))
    client = bench.channel(bench.flow("client"), MQTT5)

    send(client, Publish("t", bytes(100)), Publish("t", b"x"), Publish("t", b"y"))

    got = [(packet.topic, packet.properties.topic_alias, packet.payload) for packet in publishes_of(listener)]
    assert got == [("t", 1, b"x"), ("", 1, b"y")]


# Access


def test_access_to_a_topic_is_checked_once_until_the_rules_change(bench: Bench) -> None:
    flow = bench.flow()
    listener = bench.channel(flow, MQTT5)
    bench.routes.add(Subscription(flow, b"#", 1))
    client = bench.channel(bench.flow("client"), MQTT5)
    client.is_restricted = True
    client.allowed = lambda topic: topic == b"yes"

    send(client, *(Publish(topic, b"", 1, packet_id=i + 1) for i, topic in enumerate(("yes", "no", "yes", "no"))))

    assert client.asked == [b"yes", b"no"]
    assert client.denied == [b"no", b"no"]
    assert client.sent() == [Puback(1), Puback(2, 0x87), Puback(3), Puback(4, 0x87)]
    assert [packet.topic for packet in publishes_of(listener)] == ["yes", "yes"]
    assert bench.drops == [("not_authorized", "client", b"no")] * 2

    client.allowed = lambda topic: False
    client.forget_verdicts()
    send(client, Publish("yes", b"", 1, packet_id=9))
    assert client.sent() == [Puback(9, 0x87)]


def test_an_invalid_topic_is_reported_to_the_broker(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(b"\x30\x06\x00\x03a/+\x00")

    assert client.bad_topics == [b"a/+"]


@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_and_flagged_routes_take_the_slow_path(bench: Bench, qos: int) -> None:
    bench.routes.inspector = lambda topic: 2 if topic == b"marked" else 0
    client = bench.channel(bench.flow("client"), MQTT5)
    packet_id = 1 if qos else None

    send(client, Publish("plain", b"1", qos, packet_id=packet_id), Publish("plain", b"2", qos, retain=True, packet_id=packet_id))
    send(client, Publish("marked", b"3", qos, packet_id=packet_id))

    assert [(message.payload, message.retain, message.publisher) for message in client.published] == [
        (b"2", True, "client"),
        (b"3", False, "client"),
    ]


def test_a_declared_utf8_payload_takes_the_slow_path_if_payloads_are_checked(bench: Bench) -> None:
    client = bench.channel(bench.flow("client"), MQTT5)
    text = Publish("t", b"x", properties=Properties(payload_format_indicator=1))

    send(client, text)
    client.is_strict_payload = True
    send(client, text, Publish("t", b"y"))

    assert [message.payload for message in client.published] == [b"x"]
