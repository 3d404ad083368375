"""Shared subscriptions: which member gets a message, and what happens if it leaves before acknowledging it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Puback, Publish, Pubrec
from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import Wire, payloads, unique
from tests.support.stage import Stage

Start = Callable[..., Stage]


def join(stage: Stage, topic_filter: str, count: int = 2, qos: int = 1, **fields: Any) -> list[Wire]:
    """Members of one group, in the order in which they joined."""
    members = [stage.connect(**fields) for _ in range(count)]
    for member in members:
        member.subscribe(f"$share/g/{topic_filter}", qos=qos)
    return members


def shares(members: list[Wire]) -> list[list[bytes]]:
    """What each member has got so far; QoS 1 is acknowledged."""
    got: list[list[bytes]] = []
    for member in members:
        packets = member.drain()
        for packet in packets:
            if isinstance(packet, Publish) and packet.qos == 1:
                member.acknowledge(packet)
        got.append(payloads(packets))
    return got


def numbers(first: int, last: int) -> list[bytes]:
    """Payloads to tell apart."""
    return [str(number).encode() for number in range(first, last)]


def test_round_robin_takes_turns(stage: Stage) -> None:
    topic = unique("t/")
    members, sender = join(stage, topic, 3), stage.connect()

    for payload in numbers(0, 9):
        sender.publish(topic, payload, 1)

    assert shares(members) == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]


def test_random_reaches_every_member_and_repeats_no_message(start: Start) -> None:
    stage = start(shared={"strategy": "random"})
    members, sender = join(stage, "t"), stage.connect()

    for payload in numbers(0, 100):
        sender.publish("t", payload, 1)

    first, second = shares(members)
    assert first
    assert second
    assert sorted(first + second) == sorted(numbers(0, 100))


def test_sticky_stays_with_one_member_until_it_leaves(start: Start) -> None:
    stage = start(shared={"strategy": "sticky"})
    members, sender = join(stage, "t", 3), stage.connect()
    for payload in numbers(0, 6):
        sender.publish("t", payload, 1)
    got = shares(members)
    chosen = next(i for i, share in enumerate(got) if share)
    assert got[chosen] == numbers(0, 6)

    members.pop(chosen).disconnect()
    for payload in numbers(6, 12):
        sender.publish("t", payload, 1)

    assert sorted(shares(members)) == [[], numbers(6, 12)]


def test_hash_topic_keeps_each_topic_with_one_member(start: Start) -> None:
    stage = start(shared={"strategy": "hash_topic"})
    members, sender = join(stage, "t/+"), stage.connect()

    for _ in range(3):
        for number in range(20):
            sender.publish(f"t/{number}", str(number).encode(), 1)

    first, second = shares(members)
    assert first
    assert second
    assert set(first).isdisjoint(second)
    assert all((first + second).count(payload) == 3 for payload in numbers(0, 20))


def test_hash_clientid_keeps_each_publisher_with_one_member(start: Start) -> None:
    stage = start(shared={"strategy": "hash_clientid"})
    members = join(stage, "t")
    senders = [stage.connect() for _ in range(20)]

    for _ in range(3):
        for number, sender in enumerate(senders):
            sender.publish("t", str(number).encode(), 1)

    first, second = shares(members)
    assert first
    assert second
    assert set(first).isdisjoint(second)


def test_a_new_strategy_applies_to_existing_groups(start: Start) -> None:
    stage = start()
    members, sender = join(stage, "t"), stage.connect()
    node = stage.broker.node
    assert node is not None

    stage.broker.run(node.reload(node.config.with_overrides({"shared.strategy": "sticky"})))
    for payload in numbers(0, 4):
        sender.publish("t", payload, 1)

    assert sorted(shares(members)) == [[], numbers(0, 4)]


def test_each_group_and_each_plain_subscription_gets_a_copy(stage: Stage) -> None:
    topic = unique("t/")
    one, two, plain, sender = (stage.connect() for _ in range(4))
    one.subscribe(f"$share/g/{topic}", qos=1)
    two.subscribe(f"$share/h/{topic}", qos=1)
    plain.subscribe(topic, qos=1)

    sender.publish(topic, b"x", 1)

    assert shares([one, two, plain]) == [[b"x"], [b"x"], [b"x"]]


def test_unacknowledged_messages_of_a_leaving_member_go_to_another_member(stage: Stage) -> None:
    topic = unique("t/")
    (idle, busy), sender = join(stage, topic), stage.connect()
    for payload in numbers(0, 6):
        sender.publish(topic, payload, 1)
    assert payloads(idle.receive_publishes(3)) == [b"0", b"2", b"4"]
    assert shares([busy]) == [[b"1", b"3", b"5"]]

    idle.close()

    assert [busy.receive_publish().payload for _ in range(3)] == [b"0", b"2", b"4"]
    busy.expect_silence()


def test_messages_queued_for_an_offline_member_go_to_a_connected_member(stage: Stage) -> None:
    topic = unique("t/")
    away, here = join(stage, topic, persistent=True)
    sender = stage.connect()
    sender.publish(topic, b"sent to the first", 1)
    away.receive_publishes(1)

    away.close()
    assert here.receive_publish().payload == b"sent to the first"
    sender.publish(topic, b"sent while away", 1)
    assert here.receive_publish().payload == b"sent while away"

    back = stage.connect(away.client_id, persistent=True)
    assert back.connack.session_present
    back.expect_silence()


def test_messages_for_an_offline_group_go_to_the_first_member_that_returns(stage: Stage) -> None:
    topic = unique("t/")
    members, sender = join(stage, topic, persistent=True), stage.connect()
    for member in members:
        member.disconnect()
    assert [sender.publish(topic, payload, 1) for payload in numbers(0, 4)] == [0, 0, 0, 0]

    first = stage.connect(members[1].client_id, persistent=True)
    assert sorted(first.receive_publish().payload for _ in range(4)) == numbers(0, 4)

    second = stage.connect(members[0].client_id, persistent=True)
    assert shares([first, second]) == [[], []]


def test_a_new_member_gets_messages_queued_for_offline_members(stage: Stage) -> None:
    topic = unique("t/")
    (away,), sender = join(stage, topic, 1, persistent=True), stage.connect()
    away.subscribe(f"{topic}/own", qos=1)
    away.disconnect()
    for payload in numbers(0, 4):
        sender.publish(topic, payload, 1)
    sender.publish(f"{topic}/own", b"mine", 1)

    (new,) = join(stage, topic, 1)

    assert [new.receive_publish().payload for _ in range(4)] == numbers(0, 4)
    back = stage.connect(away.client_id, persistent=True)
    assert back.receive_publish().payload == b"mine", "what it subscribed to itself stays with it"
    shares([new, back])


def test_qos_0_messages_go_to_connected_members_only(stage: Stage) -> None:
    topic = unique("t/")
    away, here = join(stage, topic, persistent=True)
    away.disconnect()
    sender = stage.connect()

    for payload in numbers(0, 4):
        sender.publish(topic, payload, 0)

    assert shares([here]) == [numbers(0, 4)]


def test_a_sent_qos_2_message_stays_with_its_session(stage: Stage) -> None:
    topic = unique("t/")
    (away, here), sender = join(stage, topic, qos=2, persistent=True), stage.connect()
    sender.publish(topic, b"mine", 2)
    sent = away.receive(Publish)
    away.close()
    sender.publish(topic, b"the next", 2)

    assert here.receive_publish().payload == b"the next", "and not what the other may have already"
    back = stage.connect(away.client_id, persistent=True)
    again = back.receive(Publish)
    assert (again.payload, again.dup, again.packet_id) == (b"mine", True, sent.packet_id)
    back.acknowledge(again)
    here.expect_silence()


def test_a_sent_qos_2_message_ends_with_its_session(stage: Stage) -> None:
    topic = unique("t/")
    (mortal, here), sender = join(stage, topic, qos=2), stage.connect()
    sender.publish(topic, b"mine", 2)
    mortal.receive(Publish)

    mortal.close()
    sender.publish(topic, b"the next", 2)

    assert here.receive_publish().payload == b"the next"
    here.expect_silence()


@pytest.mark.parametrize(("qos", "answer"), [(1, Puback), (2, Pubrec)], ids=["qos1", "qos2"])
def test_a_message_rejected_by_one_member_is_not_sent_to_another(stage: Stage, qos: int, answer: type) -> None:
    """[MQTT-4.8.2-6]: a refusal is an answer, not an absence."""
    topic = unique("t/")
    (refusing, other), sender = join(stage, topic, qos=qos), stage.connect()
    sender.publish(topic, b"no, thank you", qos)

    came = refusing.receive(Publish)
    refusing.send(answer(came.packet_id, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
    refusing.ping()

    other.expect_silence()
    refusing.disconnect()
    other.expect_silence()


def test_a_member_with_a_full_queue_is_skipped(start: Start) -> None:
    stage = start(session={"queue_messages_max": 4})
    slow = stage.connect(receive_maximum=1)
    slow.subscribe("$share/g/t", qos=1)
    swift, sender = stage.connect(), stage.connect()
    swift.subscribe("$share/g/t", qos=1)

    for payload in numbers(0, 40):
        sender.publish("t", payload, 1)

    to_swift = shares([swift])[0]
    to_slow: list[bytes] = []
    while len(to_slow) + len(to_swift) < 40:
        to_slow.append(slow.receive_publish().payload)
    assert sorted(to_slow + to_swift) == sorted(numbers(0, 40)), "nothing is lost, nothing comes twice"
    assert len(to_slow) <= 1 + 4
    assert stage.drops("queue_full") == 0


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["v3.1.1", "v5.0"])
def test_unsubscribing_leaves_the_group(stage: Stage, version: int) -> None:
    topic = unique("t/")
    (leaving, staying), sender = join(stage, topic, version=version), stage.connect()

    leaving.unsubscribe(f"$share/g/{topic}")
    for payload in numbers(0, 4):
        sender.publish(topic, payload, 1)

    assert shares([leaving, staying]) == [[], numbers(0, 4)]
    staying.unsubscribe(f"$share/g/{topic}")
    assert sender.publish(topic, b"x", 1) == Reason.NO_MATCHING_SUBSCRIBERS
