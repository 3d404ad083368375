"""Shared subscriptions of durable sessions: one cursor over the log, which survives the process."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomli_w

from braidmq.mqtt.packets import MQTT5, MQTT311, Puback, Publish
from braidmq.mqtt.reasons import Reason
from braidmq.testing import Broker
from tests.support.clients.wire import Wire, unique
from tests.support.member import Member, serve_until
from tests.support.present import present
from tests.support.stage import ErrorLog, Stage
from tests.support.started import Started


@contextmanager
def running(folder: Path) -> Iterator[Stage]:
    """A broker whose data outlives it."""
    with ErrorLog().listening() as errors, Broker(node={"data_dir": str(folder / "data")}) as broker:
        stage = Stage(broker, errors)
        yield stage
        stage.close()


def numbers(first: int, last: int) -> list[bytes]:
    """Payloads to tell apart."""
    return [str(number).encode() for number in range(first, last)]


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["v3.1.1", "v5.0"])
def test_messages_for_a_group_of_offline_members_wait_in_the_log_not_in_a_queue(stage: Stage, version: int) -> None:
    topic = unique("t/")
    members = [stage.connect(version=version, persistent=True) for _ in range(2)]
    for member in members:
        member.subscribe(f"$share/g/{topic}", qos=1)
        member.disconnect()
    sender = stage.connect()
    for payload in numbers(0, 50):
        assert sender.publish(topic, payload, 1) == 0
    flows = stage.look(
        lambda inside: [present(inside.sessions.get(member.client_id)).flow.queue_messages() for member in members]
    )
    assert flows == [0, 0]

    back = stage.connect(members[1].client_id, version=version, persistent=True)

    assert [back.receive_publish().payload for _ in range(50)] == numbers(0, 50)
    back.expect_silence()


def test_returning_members_share_a_large_backlog(stage: Stage) -> None:
    topic, count = unique("t/"), 3000
    members = [Member(1, topic, window=10).connect(stage.broker.port, subscribes=True) for _ in range(2)]
    for member in members:
        member.lose()
    sender = stage.connect()
    for first in range(0, count, 500):
        packets = [Publish(topic, payload, 1, packet_id=i + 1) for i, payload in enumerate(numbers(first, first + 500))]
        sender.send(*packets)
        assert [sender.receive(Puback).reason for _ in packets] == [0] * len(packets)

    for member in members:
        member.connect(stage.broker.port)
    serve_until(members, lambda: sum(len(member.accepted) for member in members) >= count)

    assert Counter(members[0].accepted + members[1].accepted) == Counter(numbers(0, count))
    assert min(len(member.accepted) for member in members) > count / 10
    for member in members:
        assert [int(payload) for payload in member.accepted] == sorted(int(payload) for payload in member.accepted)
        member.lose()


def test_unacknowledged_messages_of_a_memory_session_return_to_the_group(stage: Stage) -> None:
    topic = unique("t/")
    durable = stage.connect(persistent=True)
    durable.subscribe(f"$share/g/{topic}", qos=1)
    durable.disconnect()
    mortal, sender = stage.connect(), stage.connect()
    mortal.subscribe(f"$share/g/{topic}", qos=1)
    for payload in numbers(0, 4):
        sender.publish(topic, payload, 1)
    assert mortal.receive_publish().payload == b"0"
    assert [packet.payload for packet in mortal.receive_publishes(3)] == numbers(1, 4)

    mortal.close()
    back = stage.connect(durable.client_id, persistent=True)

    assert [back.receive_publish().payload for _ in range(3)] == numbers(1, 4)
    back.expect_silence()


def test_a_member_with_a_full_window_does_not_block_the_group(stage: Stage) -> None:
    topic = unique("t/")
    idle, busy = (stage.connect(persistent=True, receive_maximum=2) for _ in range(2))
    for member in (idle, busy):
        member.subscribe(f"$share/g/{topic}", qos=1)
    sender = stage.connect()

    for payload in numbers(0, 20):
        sender.publish(topic, payload, 1)

    assert [packet.payload for packet in idle.receive_publishes(2)] == [b"0", b"2"]
    got = [busy.receive_publish().payload for _ in range(18)]
    assert got == [b"1", *numbers(3, 20)]
    busy.expect_silence()
    idle.close()
    assert [busy.receive_publish().payload for _ in range(2)] == [b"0", b"2"]


def test_a_group_resumes_at_its_cursor_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as stage:
        members = [stage.connect(persistent=True) for _ in range(2)]
        for member in members:
            member.subscribe("$share/g/t/+", qos=1)
        sender = stage.connect()
        for payload in numbers(0, 4):
            sender.publish("t/1", payload, 1)
        assert members[0].receive_publish().payload == b"0"
        assert members[0].receive_publishes(1)[0].payload == b"2"
        assert [packet.payload for packet in members[1].receive_publishes(2)] == [b"1", b"3"]

    with running(tmp_path) as stage:
        stage.connect().publish("t/1", b"4", 1)
        back = stage.connect(members[0].client_id, persistent=True)

        assert [back.receive_publish().payload for _ in range(4)] == numbers(1, 5)
        back.expect_silence()


def test_a_group_without_members_is_forgotten(tmp_path: Path) -> None:
    with running(tmp_path) as stage:
        member, sender = stage.connect(persistent=True), stage.connect()
        member.subscribe("$share/g/t", qos=1)
        member.unsubscribe("$share/g/t")
        assert sender.publish("t", b"nobody's", 1) == Reason.NO_MATCHING_SUBSCRIBERS
        assert stage.look(lambda inside: list(inside.turn_writer.storage.groups.load())) == []

    with running(tmp_path) as stage:
        back = stage.connect(member.client_id, persistent=True)
        back.subscribe("$share/g/t", qos=1)
        stage.connect().publish("t", b"new", 1)

        assert back.receive_publish().payload == b"new"


def test_kill_9_loses_no_message_and_repeats_no_qos_2_message(tmp_path: Path) -> None:
    file = tmp_path / "braidmq.toml"
    listeners = {"tcp": {"default": {"bind": "127.0.0.1:0"}}}
    file.write_text(tomli_w.dumps({"node": {"data_dir": "data"}, "listeners": listeners, "api": {"bind": ""}}))
    groups = [[Member(qos, "t/+", group=f"g{qos}", window=7) for _ in range(3)] for qos in (1, 2)]
    members = [member for group in groups for member in group]
    sent: list[bytes] = []
    for first in (0, 100):
        with Started(file) as node:
            port = node.await_port()
            for member in members:
                member.connect(port, subscribes=first == 0)
            sender = Wire("127.0.0.1", port).connect()
            for payload in numbers(first, first + 40):
                assert sender.publish(f"t/{payload[-1:].decode()}", payload, 2) == 0
                sent.append(payload)
                for prompt, slow, forgetful in groups:
                    prompt.serve()
                    slow.serve(1)
                    forgetful.serve(1, answers=int(payload) % 3 == 0)
            node.send(signal.SIGKILL)
            assert node.await_end() == -signal.SIGKILL
            sender.close()
            for member in members:
                member.lose()

    with Started(file) as node:
        port = node.await_port()
        for member in members:
            member.connect(port)
        serve_until(members, lambda: all(set(sent) <= {each for one in group for each in one.accepted} for group in groups))
        for member in members:
            member.lose()

    at_least_once, exactly_once = (Counter(payload for member in group for payload in member.accepted) for group in groups)
    assert set(at_least_once) == set(sent)
    assert exactly_once == Counter(sent)
