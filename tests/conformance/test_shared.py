"""Shared subscriptions (chapter 4.8.2)."""

from __future__ import annotations

from collections import Counter

import pytest

from braidmq.mqtt.packets import Puback, Publish, Pubrec, Pubrel, Suback, SubscribeOption
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wire, Wires, payloads
from tests.support.stage import wait_until


def share(topic: str) -> str:
    """A shared filter for the topic with a group of its own."""
    return f"$share/{topic.replace('/', '')}/{topic}"


def only_receiver(members: list[Wire]) -> tuple[Wire, Publish]:
    """The one member that was given the message, and the message; to a durable session it comes after a commit of its own."""
    wait_until(lambda: any(member.has_arrived() for member in members), "a member is given the message")
    found = [(member, packet) for member in members for packet in member.drain() if isinstance(packet, Publish)]
    assert len(found) == 1, f"wanted one delivery, got {found!r}"
    return found[0]


@shows("5.0: MQTT-4.8.2-1", "5.0: MQTT-4.8.2-2", "5.0: MQTT-4.5.0-1")
def test_each_group_gets_each_message_once(connect: Wires, version: int, topic: str) -> None:
    publisher, plain = connect(), connect()
    plain.subscribe(topic)
    groups = [[connect() for _ in range(3)] for _ in range(2)]
    for number, members in enumerate(groups):
        for member in members:
            member.subscribe(f"$share/g{number}-ä/{topic}")
    sent = [b"%d" % number for number in range(12)]

    for payload in sent:
        publisher.publish(topic, payload)

    assert payloads(plain.drain()) == sent
    for members in groups:
        received = Counter(payload for member in members for payload in payloads(member.drain()))
        assert received == Counter(sent)


@shows("5.0: MQTT-4.8.2-1", "5.0: MQTT-4.8.2-2")
@pytest.mark.parametrize("topic_filter", ["$share//t", "$share/g", "$share/g/", "$share/g+/t", "$share/#/t", "$share/"])
def test_a_malformed_share_is_refused(connect: Wires, version: int, topic_filter: str) -> None:
    client = connect()

    client.send(raw.subscribe(version, (topic_filter, 0)))

    assert client.receive(Suback).reasons == [0x8F]
    client.ping()


@shows("5.0: MQTT-3.8.3-4")
def test_no_local_on_a_shared_subscription_closes_the_connection(connect: Wires, version: int, topic: str) -> None:
    client = connect()

    client.send(raw.subscribe(version, (share(topic), 0x04)))

    client.expect_disconnect(0x82)


@shows("5.0: MQTT-4.8.2-3", "5.0: MQTT-3.8.4-8")
def test_each_member_gets_the_qos_that_it_was_granted(connect: Wires, version: int, topic: str) -> None:
    publisher, members = connect(), [connect() for _ in range(3)]
    for qos, member in enumerate(members):
        member.subscribe(share(topic), qos=qos)

    for _ in range(12):
        publisher.publish(topic, b"x", 2)
        member, publish = only_receiver(members)
        assert publish.qos == members.index(member)
        if publish.qos:
            member.acknowledge(publish)


@shows("5.0: MQTT-4.8.2-4", "5.0: MQTT-4.4.0-1")
@pytest.mark.parametrize("phase", ["PUBLISH", "PUBREL"])
def test_an_interrupted_qos_2_delivery_is_finished_with_the_same_member(
    connect: Wires, version: int, topic: str, phase: str
) -> None:
    publisher, members = connect(), [connect(persistent=True) for _ in range(3)]
    for member in members:
        member.subscribe(share(topic), qos=2)
    publisher.publish(topic, b"x", 2)
    chosen, publish = only_receiver(members)
    others = [member for member in members if member is not chosen]
    if phase == "PUBREL":
        chosen.send(Pubrec(publish.packet_id or 0))
        chosen.receive(Pubrel)

    chosen.close()
    for member in others:
        member.expect_silence()
    back = connect(chosen.client_id, persistent=True)

    if phase == "PUBLISH":
        again = back.receive_publish()
        assert (again.payload, again.packet_id, again.dup) == (b"x", publish.packet_id, True)
    else:
        assert back.receive(Pubrel).packet_id == publish.packet_id
    for member in others:
        member.expect_silence()


@shows("5.0: MQTT-4.8.2-5")
@pytest.mark.parametrize("phase", ["PUBLISH", "PUBREL"])
def test_a_qos_2_message_ends_with_the_session_of_its_member(connect: Wires, version: int, topic: str, phase: str) -> None:
    publisher, members = connect(), [connect() for _ in range(3)]
    for member in members:
        member.subscribe(share(topic), qos=2)
    publisher.publish(topic, b"x", 2)
    chosen, publish = only_receiver(members)
    others = [member for member in members if member is not chosen]
    if phase == "PUBREL":
        chosen.send(Pubrec(publish.packet_id or 0))
        chosen.receive(Pubrel)

    # Without a session expiry the session ends with the connection.
    chosen.disconnect()

    with pytest.raises(TimeoutError):
        others[0].receive_any(timeout_s=0.3)
    for member in others:
        member.expect_silence()


@shows("5.0: MQTT-4.8.2-6", "5.0: MQTT-4.4.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_message_goes_to_no_other_member(connect: Wires, version: int, topic: str, qos: int) -> None:
    publisher, members = connect(), [connect() for _ in range(3)]
    for member in members:
        member.subscribe(SubscribeOption(share(topic), qos))
    publisher.publish(topic, b"refused", qos)
    chosen, publish = only_receiver(members)

    answer = Puback if qos == 1 else Pubrec
    chosen.send(answer(publish.packet_id or 0, 0x80))
    chosen.ping()

    with pytest.raises(TimeoutError):
        next(member for member in members if member is not chosen).receive_any(timeout_s=0.3)
    for member in members:
        member.expect_silence()


@shows("5.0: MQTT-3.3.1-9", "5.0: MQTT-4.8.2-1")
def test_a_shared_subscription_brings_no_retained_messages(connect: Wires, version: int, topic: str) -> None:
    publisher, member = connect(), connect()
    publisher.publish(topic, b"kept", 1, retain=True)

    member.subscribe(share(topic), qos=1)
    publisher.publish(topic, b"live", 1)

    assert member.receive_publish().payload == b"live"


@shows("5.0: MQTT-3.10.4-1", "5.0: MQTT-3.10.4-2")
def test_leaving_one_group_leaves_the_other_subscriptions_alone(connect: Wires, version: int, topic: str) -> None:
    publisher, member = connect(), connect()
    member.subscribe(topic, f"$share/a/{topic}", f"$share/b/{topic}")

    assert member.unsubscribe(f"$share/a/{topic}").reasons == [0]
    assert member.unsubscribe(f"$share/a/{topic}").reasons == [0x11]
    publisher.publish(topic, b"x")

    # Once for the plain subscription and once for group b, or both in one; never again for a.
    assert payloads(member.drain()) in ([b"x"], [b"x", b"x"])
    member.unsubscribe(topic)
    publisher.publish(topic, b"y")
    assert member.receive(Publish).payload == b"y"
