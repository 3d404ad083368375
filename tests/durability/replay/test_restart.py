"""Replays of durable sessions beside their other subscriptions, and over kill -9 (S3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Puback, Suback, Subscribe, SubscribeOption
from braidmq.mqtt.properties import Properties
from tests.durability.campaigns.node import client, kill, stop, write_config
from tests.durability.campaigns.node import start as start_node
from tests.durability.replay.asking import amid, ask, bodies, is_end, numbered, publish_all, read, read_to_end, record, replay
from tests.support.clients.wire import unique
from tests.support.stage import Stage

Start = Callable[..., Stage]


def test_a_replay_of_one_filter_does_not_rewind_another(start: Start) -> None:
    stage = start()
    session = stage.connect(persistent=True)
    session.subscribe("a/#", qos=1)
    on_a = record(stage, "a/x", 10)
    assert bodies(read(session, 10)) == on_a
    on_b = record(stage, "b/x", 10)

    session.subscribe("b/#", qos=1, user_properties=ask("-24h", end=True))

    assert bodies(read_to_end(session, "b/#")) == on_b
    session.expect_silence()
    more = record(stage, "a/x", 1, stem=b"more") + record(stage, "b/x", 1, stem=b"more")
    assert bodies(read(session, 2)) == more


def test_a_session_that_is_behind_gets_nothing_from_before_a_plain_subscription(start: Start) -> None:
    stage = start()
    name = unique()
    slow = stage.connect(name, persistent=True, receive_maximum=2)
    slow.subscribe("a/#", qos=1)
    on_a = record(stage, "a/x", 10)
    first = slow.receive_publishes(2)
    record(stage, "c/x", 10)

    slow.subscribe("c/#", qos=1)
    on_c = record(stage, "c/x", 3, stem=b"after")
    for each in first:
        slow.acknowledge(each)

    assert bodies(first + read(slow, 11)) == on_a + on_c
    slow.expect_silence()


def test_no_replayed_message_is_sent_before_suback(start: Start) -> None:
    stage = start()
    session = stage.connect(persistent=True, receive_maximum=3)
    session.subscribe("a", qos=1)
    record(stage, "a", 4)
    on_b = record(stage, "b", 4)
    first = session.receive_publishes(3)  # the fourth waits in the log, so acknowledgements let the broker read

    acks = [Puback(each.packet_id or 0) for each in first]
    subscribe = Subscribe(session.next_packet_id(), [SubscribeOption("b", 0)], Properties(user_properties=ask("earliest")))
    before, _ = amid(session, subscribe, Suback, *acks)

    assert {each.topic for each in before} <= {"a"}
    assert [each.payload for each in read(session, 5 - len(before)) if each.topic == "b"] == on_b


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_replay_resumes_after_kill_9(tmp_path: Path, qos: int, version: int) -> None:
    file = write_config(tmp_path, mqtt={"inflight_max": 5})
    sent = numbered(60)
    seen: list[bytes] = []
    written = ""
    held: set[int] = set()  # what the client knows of its QoS 2 messages
    for is_first in (True, False, False):
        with start_node(file) as node:
            port = node.await_port()
            if is_first:
                publish_all(port, "t/x", sent, qos)
            reader = client(port, version, client_id="r", persistent=True)
            if is_first:
                written = replay(reader, "t/+", qos=qos, end=True)
            seen += bodies(read(reader, 12, held=held))
            kill(node)
    with start_node(file) as node:
        port = node.await_port()
        reader = client(port, version, client_id="r", persistent=True)
        assert reader.connack.session_present
        seen += bodies(read_to_end(reader, written, held=held))
        publish_all(port, "t/x", [b"live"], qos)
        assert bodies(read(reader, 1, held=held)) == [b"live"]
        stop(node)

    assert list(dict.fromkeys(seen)) == sent
    if qos == 2:
        assert seen == sent, "exactly once"


def test_old_and_new_inflight_messages_are_resent_after_kill_9(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    old, new = numbered(3, b"old"), numbered(3, b"new")
    with start_node(file) as node:
        port = node.await_port()
        publish_all(port, "t", old, 2)
        publish_all(port, "u", numbered(2000))
        reader = client(port, client_id="r", persistent=True, receive_maximum=6)
        reader.subscribe("t", "u", qos=2)
        reader.subscribe("$replay/earliest,end/t", qos=2)
        first = reader.receive_publishes(3)
        assert is_end(reader.receive_frame(), "$replay/earliest,end/t")
        publish_all(port, "t", new, 2)  # comes once: one of the two is live, and the other has caught up
        second = reader.receive_publishes(3)
        kill(node)
    with start_node(file) as node:
        again = client(node.await_port(), client_id="r", persistent=True, receive_maximum=6)
        resent = again.receive_publishes(6)
        stop(node)

    assert bodies(first + second) == old + new
    assert [(each.packet_id, each.payload, each.dup) for each in resent] == [
        (each.packet_id, each.payload, True) for each in first + second
    ]


@pytest.mark.parametrize("qos", [1, 2])
def test_inflight_messages_survive_a_second_kill_9_right_after_reconnect(tmp_path: Path, qos: int) -> None:
    file = write_config(tmp_path)
    sent = numbered(3)
    with start_node(file) as node:
        port = node.await_port()
        publish_all(port, "t", sent, qos)
        reader = client(port, client_id="r", persistent=True)
        replay(reader, "t", qos=qos)
        first = reader.receive_publishes(3)
        reader.close()
        stop(node)
    with start_node(file) as node:
        client(node.await_port(), client_id="r", persistent=True)  # its session is written anew before CONNACK
        kill(node)
    with start_node(file) as node:
        again = client(node.await_port(), client_id="r", persistent=True).receive_publishes(3)
        stop(node)

    assert bodies(first) == bodies(again) == sent
    assert [each.packet_id for each in again] == [each.packet_id for each in first]
    assert all(each.dup for each in again)


def test_a_record_inflight_for_two_subscriptions_is_resent_for_both(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    with start_node(file) as node:
        port = node.await_port()
        reader = client(port, client_id="r", persistent=True)
        reader.subscribe("t", qos=1)
        publish_all(port, "t", [b"x"])
        live = reader.receive_publishes(1)
        reader.subscribe("$replay/earliest/t", qos=1)
        both = live + reader.receive_publishes(1)
        stop(node)
    with start_node(file) as node:
        again = client(node.await_port(), client_id="r", persistent=True)
        resent = again.receive_publishes(2)
        stop(node)

    assert [each.packet_id for each in resent] == [each.packet_id for each in both]
    assert bodies(resent) == [b"x", b"x"]


def test_an_end_marker_not_sent_before_a_restart_is_sent_after_it(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    sent = numbered(20)
    with start_node(file) as node:
        port = node.await_port()
        publish_all(port, "t/x", sent)
        reader = client(port, client_id="r", persistent=True, receive_maximum=10)
        replay(reader, "t/+", end=True)
        stop(node)
    with start_node(file) as node:
        port = node.await_port()
        reader = client(port, client_id="r", persistent=True)
        assert list(dict.fromkeys(bodies(read_to_end(reader, "t/+")))) == sent
        reader.disconnect()
        publish_all(port, "other", [b"x"])  # commits are in order: what the broker wrote at the DISCONNECT is on disk as well
        kill(node)
    with start_node(file) as node:
        again = client(node.await_port(), client_id="r", persistent=True)
        again.ping()
        again.expect_silence()
        stop(node)
