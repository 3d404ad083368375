"""Thousands of shared groups: one turn of the event loop does a bounded amount of work for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.broker import assembly
from braidmq.broker.broker import Broker
from braidmq.lane.routing.routes import GROUP_WEIGHT
from braidmq.mqtt.packets import MQTT5, Puback, Publish, Pubrec, Suback, Subscribe, SubscribeOption
from braidmq.mqtt.properties import Properties
from tests.support.clients import raw
from tests.support.clients.wire import Wire
from tests.support.stage import Stage, wait_until
from tests.support.turns import count_turns

CLIENTS, GROUPS, MESSAGES = 4, 1000, 20

# A callback may do a turn's work, and there may be two of them in a turn: one that commits, and one that goes on from before.
TURN_MAX = 2 * assembly._WORK_MAX // GROUP_WEIGHT + CLIENTS * 100


def join(client: Wire, name: str, count: int, qos: int, topic_filter: str = "t/#") -> None:
    for first in range(0, count, 250):
        filters = ((f"$share/{name}{number}/{topic_filter}", qos) for number in range(first, first + 250))
        client.send(raw.subscribe(MQTT5, *filters))
        assert set(client.receive(Suback).reasons) == {qos}


def sent(inside: Broker) -> int:
    """Messages that were sent to clients."""
    counters = inside.state.counters
    return counters.publish_qos0_sent + counters.publish_qos1_sent


def publish(client: Wire, count: int, qos: int) -> None:
    packets = (raw.publish(MQTT5, "t/x", b"%d" % number, flags=qos << 1, packet_id=number) for number in range(1, count + 1))
    client.send(b"".join(packets))


@pytest.mark.row(49)
@pytest.mark.parametrize("member_qos", [0, 1])
def test_a_commit_for_thousands_of_groups_is_delivered_over_many_turns(stage: Stage, member_qos: int) -> None:
    for number in range(CLIENTS):
        join(stage.connect(), f"q{member_qos}c{number}g", GROUPS, member_qos)
    publisher = stage.connect()
    before = stage.look(sent)

    with count_turns(stage, sent) as count:
        publish(publisher, MESSAGES, qos=1)
        answers = [publisher.receive(Puback) for _ in range(MESSAGES)]
        if not member_qos:  # with QoS 1 what is more than a client's window waits for acknowledgements
            wanted = before + CLIENTS * GROUPS * MESSAGES
            wait_until(lambda: stage.look(sent) == wanted, "every group has handed out every message")

    assert [(answer.packet_id, answer.reason) for answer in answers] == [(number, 0) for number in range(1, MESSAGES + 1)]
    assert count.most <= TURN_MAX
    if not member_qos:
        assert count.turns >= CLIENTS * GROUPS * MESSAGES / TURN_MAX


@pytest.mark.row(49)
def test_unrecorded_messages_reach_thousands_of_groups_over_many_turns(
    start: Callable[..., Stage],
) -> None:
    stage = start(history={"topics": []})
    for number in range(CLIENTS):
        join(stage.connect(), f"c{number}g", GROUPS, 0)
    publisher = stage.connect()

    with count_turns(stage, sent) as count:
        publish(publisher, MESSAGES, qos=2)
        for _ in range(MESSAGES):
            publisher.receive(Pubrec)
        publisher.send(b"".join(raw.publish(MQTT5, "t/x", b"") for _ in range(MESSAGES)))
        publisher.ping()

    assert count.most <= TURN_MAX


@pytest.mark.row(49)
def test_each_of_many_groups_gets_every_message_in_order(stage: Stage) -> None:
    many, plain = stage.connect(), stage.connect()
    for number in range(1, GROUPS + 251):
        many.send(Subscribe(1, [SubscribeOption(f"$share/o{number}/o/#", 0)], Properties(subscription_identifiers=(number,))))
    for _ in range(GROUPS + 250):
        many.receive(Suback)
    plain.subscribe("o/#", qos=1)
    publisher = stage.connect()

    publisher.send(b"".join(raw.publish(MQTT5, "o/x", b"%d" % n, flags=2, packet_id=n) for n in range(1, 11)))

    numbers = [b"%d" % number for number in range(1, 11)]
    assert [plain.receive(Publish).payload for _ in numbers] == numbers
    got: dict[tuple[int, ...], list[bytes]] = {}
    for _ in range((GROUPS + 250) * 10):
        message = many.receive(Publish)
        got.setdefault(message.properties.subscription_identifiers, []).append(message.payload)
    assert len(got) == GROUPS + 250
    assert all(each == numbers for each in got.values())
