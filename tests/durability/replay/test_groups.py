"""Shared groups that look back: the first member says where the group begins, and nothing of it is lost or told twice (S10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311
from braidmq.mqtt.reasons import Reason
from tests.durability.campaigns.node import client, kill, stop, write_config
from tests.durability.campaigns.node import start as start_node
from tests.durability.replay.asking import ask, bodies, forget_first, numbered, publish_all, read, record, refusal
from tests.support.clients.wire import Wire, unique
from tests.support.member import Member, serve_until
from tests.support.stage import Stage

Start = Callable[..., Stage]
VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])


def join(wire: Wire, topic_filter: str, start: str, *, qos: int = 1) -> str:
    """Join the group ``g`` with a start, in the way that the client's version has; gives the filter as it was written."""
    if wire.version == MQTT5:
        wire.subscribe(f"$share/g/{topic_filter}", qos=qos, user_properties=ask(start))
        return f"$share/g/{topic_filter}"
    written = f"$share/g/$replay/{start}/{topic_filter}"
    wire.subscribe(written, qos=qos)
    return written


@VERSIONS
@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "memory"])
@pytest.mark.parametrize("start", ["earliest", "-1h"])
def test_a_group_starts_where_its_first_member_requests_and_continues_live(
    stage: Stage, version: int, is_durable: bool, start: str
) -> None:
    topic = unique()
    sent = record(stage, f"{topic}/x", 30, clients=5)
    member = stage.connect(version=version, persistent=is_durable)

    join(member, f"{topic}/+", start)

    assert bodies(read(member, 30)) == sent
    live = record(stage, f"{topic}/x", 3, stem=b"live")
    assert bodies(read(member, 3)) == live
    member.expect_silence()


def test_latest_starts_at_the_end(stage: Stage) -> None:
    topic = unique()
    record(stage, topic, 3)
    member = stage.connect()

    join(member, topic, "latest")

    live = record(stage, topic, 1, stem=b"live")
    assert bodies(read(member, 1)) == live
    member.expect_silence()


def test_members_share_the_history_and_get_each_message_once(stage: Stage) -> None:
    topic = unique()
    sent = record(stage, topic, 60)
    members = [Member(1, topic, window=4, start="earliest").connect(stage.broker.port, subscribes=True) for _ in range(3)]

    serve_until(members, lambda: sum(len(each.accepted) for each in members) >= 60)

    assert Counter(payload for each in members for payload in each.accepted) == Counter(sent)
    assert all(each.accepted for each in members)
    for each in members:
        each.lose()


@VERSIONS
def test_the_start_of_a_later_member_is_ignored_and_reported(stage: Stage, version: int) -> None:
    topic = unique()
    record(stage, topic, 3, stem=b"old")
    first, second = stage.connect(receive_maximum=1), stage.connect(version=version)
    suback = first.subscribe(f"$share/g/{topic}", qos=1)
    assert suback.properties.user_properties == ()

    written = f"$share/g/$replay/earliest,complete/{topic}"
    suback = second.request_subscribe(written, qos=1)

    assert suback.reasons == [1]
    if version == MQTT5:
        assert suback.properties.user_properties == (("replay-joined", "1"),)
        assert "exists already" in (suback.properties.reason_string or "")
    sent = record(stage, topic, 4, stem=b"new")
    assert bodies(first.receive_publishes(1)) + bodies(read(second, 3)) == sent
    second.expect_silence()


def test_a_group_without_members_can_be_started_again_with_a_start(stage: Stage) -> None:
    topic = unique()
    sent = record(stage, topic, 3)
    member = stage.connect(persistent=True)
    member.subscribe(f"$share/g/{topic}", qos=1)
    member.unsubscribe(f"$share/g/{topic}")

    suback = member.subscribe(f"$share/g/{topic}", qos=1, user_properties=ask("earliest"))

    assert suback.properties.user_properties == ()
    assert bodies(read(member, 3)) == sent


def test_messages_published_during_a_group_replay_are_neither_lost_nor_repeated(start: Start) -> None:
    stage = start(mqtt={"inflight_max": 3})
    sent = record(stage, "t", 20)
    members = [stage.connect() for _ in range(2)]
    join(members[0], "t", "earliest")
    first = members[0].receive_publishes(3)

    join(members[1], "t", "latest")
    sent += record(stage, "t", 10, stem=b"live")
    got = bodies(first) + bodies(read(members[1], 27))

    assert got == sent
    members[1].expect_silence()


def test_session_only_records_are_not_history_for_a_group(start: Start) -> None:
    stage = start(history={"topics": ["other/#"]}, mqtt={"inflight_max": 5})
    stage.connect(persistent=True).subscribe("t", qos=1)
    record(stage, "t", 3, stem=b"before")
    history = record(stage, "other/x", 20)
    member = stage.connect(persistent=True)

    join(member, "#", "earliest")
    first = member.receive_publishes(5)
    after = record(stage, "t", 3, stem=b"after")
    for each in first:
        member.acknowledge(each)

    assert bodies(first) + bodies(read(member, 18)) == history + after
    member.expect_silence()


def test_qos_0_history_is_replayed_and_live_qos_0_goes_to_connected_members(start: Start) -> None:
    stage = start(history={"min_qos": 0})
    publisher = stage.connect()
    for number in range(3):
        publisher.publish("t", b"%d" % number, 0)
    publisher.publish("t", b"3", 1)
    member = stage.connect()

    join(member, "t", "earliest", qos=1)

    came = read(member, 4)
    assert [(each.payload, each.qos) for each in came] == [(b"0", 0), (b"1", 0), (b"2", 0), (b"3", 1)]
    member.expect_silence()


def test_a_group_start_before_the_retained_history_is_reported_or_rejected(start: Start) -> None:
    stage = start()
    _, kept = forget_first(stage, "t")
    member = stage.connect()

    reasons, said = refusal(member.request_subscribe("$share/g/t", qos=1, user_properties=ask("-1h", complete=True)))
    assert reasons == [Reason.IMPLEMENTATION_SPECIFIC_ERROR]
    assert "the history of t goes back to 20" in said
    assert stage.look(lambda inside: len(inside.groups)) == 0, "it was not made"

    suback = member.subscribe("$share/g/t", qos=1, user_properties=ask("-1h"))
    assert [name for name, _ in suback.properties.user_properties] == ["replay-from"]
    assert bodies(read(member, len(kept))) == kept


def test_group_members_get_no_end_marker(stage: Stage) -> None:
    topic = unique()
    client = stage.connect()

    suback = client.request_subscribe(f"$share/g/{topic}", topic, qos=1, user_properties=ask("earliest", end=True))

    assert suback.reasons == [Reason.IMPLEMENTATION_SPECIFIC_ERROR, 1], "the other filter is granted"
    assert "not told the end" in (suback.properties.reason_string or "")


def test_group_access_is_decided_on_the_inner_filter_and_can_be_withdrawn(start: Start, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic write secret\ntopic readwrite open\n")
    stage = start(access={"acl_file": str(rules)}, mqtt={"inflight_max": 5})
    record(stage, "secret", 1)
    sent = record(stage, "open", 30)
    member = stage.connect()

    suback = member.request_subscribe("$share/g/$replay/earliest/secret", "$share/g/$replay/earliest/open", qos=1)
    assert suback.reasons == [Reason.NOT_AUTHORIZED, 1]
    first = member.receive_publishes(5)
    rules.write_text("topic write #\n")
    node = stage.broker.node
    assert node is not None
    stage.broker.run(node.access.reload())
    for each in first:
        member.acknowledge(each)

    assert bodies(first) == sent[:5]
    member.expect_silence()


def test_a_group_subscribed_in_two_forms_is_left_with_the_last_one(stage: Stage) -> None:
    topic = unique()
    sent = record(stage, topic, 3)
    member = stage.connect(persistent=True)
    plain, replay = f"$share/g/{topic}", f"$share/g/$replay/earliest/{topic}"
    member.subscribe(replay, qos=1)
    assert bodies(read(member, 3)) == sent
    member.subscribe(plain, qos=0)

    member.unsubscribe(plain)
    record(stage, topic, 1)
    back = member.receive_publish()
    member.acknowledge(back)
    member.unsubscribe(replay)

    assert back.qos == 1, "as the form that is left says"
    assert stage.connect().publish(topic, b"nobody's", 1) == Reason.NO_MATCHING_SUBSCRIBERS


@pytest.mark.parametrize("qos", [1, 2])
def test_a_replaying_group_resumes_after_kill_9(tmp_path: Path, qos: int) -> None:
    file = write_config(tmp_path)
    sent = numbered(80)
    members = [Member(qos, "t/+", window=5, start="earliest") for _ in range(2)]
    for is_first in (True, False, False):
        with start_node(file) as node:
            port = node.await_port()
            if is_first:
                publish_all(port, "t/x", sent, qos)
            before = sum(len(each.accepted) for each in members)
            for each in members:
                each.connect(port, subscribes=is_first)
            while sum(len(each.accepted) for each in members) < before + 12:
                for each in members:
                    each.serve(3, wait_s=0.05)
            kill(node)
        for each in members:
            each.lose()
    with start_node(file) as node:
        port = node.await_port()
        publish_all(port, "t/x", [b"live"], qos)
        for each in members:
            each.connect(port)
        everything = {*sent, b"live"}
        serve_until(members, lambda: everything <= {payload for each in members for payload in each.accepted})
        for each in members:
            each.lose()
        stop(node)

    counted = Counter(payload for each in members for payload in each.accepted)
    assert set(counted) == everything
    if qos == 2:
        assert set(counted.values()) == {1}, "exactly once"


def test_records_hidden_from_a_group_stay_hidden_after_kill_9(tmp_path: Path) -> None:
    file = write_config(tmp_path, history={"topics": ["other/#"]}, mqtt={"inflight_max": 2})
    with start_node(file) as node:
        port = node.await_port()
        client(port, client_id="waits", persistent=True).subscribe("t", qos=1)
        history = numbered(6, b"history")
        publish_all(port, "other/x", history[:3])
        publish_all(port, "t", [b"before"])
        publish_all(port, "other/x", history[3:])
        member = client(port, client_id="m", persistent=True)
        join(member, "#", "earliest")
        seen = bodies(member.receive_publishes(2))
        publish_all(port, "t", [b"after"])
        kill(node)
    with start_node(file) as node:
        seen += bodies(read(client(node.await_port(), client_id="m", persistent=True), 7))
        stop(node)

    assert list(dict.fromkeys(seen)) == [*history, b"after"]
