"""How a client asks for history, what it is given, and when it is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.mqtt.packets import (
    MQTT5,
    MQTT31,
    MQTT311,
    Puback,
    Suback,
    Subscribe,
    SubscribeOption,
)
from braidmq.mqtt.reasons import Reason
from tests.durability.replay.asking import (
    amid,
    ask,
    bodies,
    forget,
    forget_first,
    read,
    read_to_end,
    record,
    refusal,
    replay,
)
from tests.support.clients.wire import unique
from tests.support.present import present
from tests.support.stage import Stage

Start = Callable[..., Stage]
VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("version", [MQTT31, MQTT311, MQTT5])
def test_earliest_replays_everything_in_order_and_then_the_end_marker(stage: Stage, version: int) -> None:
    topic = unique()
    sent = record(stage, f"{topic}/x", 30, clients=7)  # their homes are different shards
    client = stage.connect(version=version)

    written = replay(client, f"{topic}/+", end=True)

    assert bodies(read_to_end(client, written)) == sent
    client.expect_silence()


@VERSIONS
def test_the_end_marker_is_sent_only_on_request(stage: Stage, version: int) -> None:
    topic = unique()
    sent = record(stage, topic, 3)
    client = stage.connect(version=version)

    replay(client, topic)

    assert bodies(read(client, 3)) == sent
    client.expect_silence()


def test_the_end_marker_is_an_empty_message_to_the_filter_with_a_user_property(stage: Stage) -> None:
    topic = unique()
    client = stage.connect()

    client.subscribe(topic, qos=1, subscription_identifiers=(7,), user_properties=ask("-1h", end=True))

    mark = client.receive_publish()
    assert (mark.topic, mark.payload, mark.qos, mark.retain) == (topic, b"", 0, False)
    assert mark.properties.user_properties == (("replay-end", "1"),)
    assert mark.properties.subscription_identifiers == (7,)


def test_latest_is_a_plain_subscription_with_an_immediate_end_marker(stage: Stage) -> None:
    topic = unique()
    record(stage, topic, 3)
    client = stage.connect()

    client.subscribe(topic, qos=1, user_properties=ask("latest", end=True))

    assert read_to_end(client, topic) == []
    (after,) = record(stage, topic, 1)
    assert client.receive_publish().payload == after


@VERSIONS
@pytest.mark.parametrize("form", ["ms", "rfc3339", "duration"])
def test_a_start_time_replays_records_from_then_on(stage: Stage, version: int, form: str) -> None:
    topic = unique()
    record(stage, topic, 4, stem=b"old")
    time.sleep(0.02)  # time itself is what is asked about
    since = now_ms()
    time.sleep(0.02)
    sent = record(stage, topic, 4, stem=b"new")
    client = stage.connect(version=version)

    if form == "ms":
        start = str(since)
    elif form == "rfc3339":
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since // 1000)) + f".{since % 1000:03d}Z"
    else:
        start = f"-{now_ms() - since}ms"
    written = replay(client, topic, start, end=True)

    assert bodies(read_to_end(client, written)) == sent


def test_a_start_in_the_future_is_now(stage: Stage) -> None:
    topic = unique()
    record(stage, topic, 2)
    client = stage.connect()

    replay(client, topic, str(now_ms() + 3_600_000))
    sent = record(stage, topic, 1, stem=b"new")

    assert bodies(read(client, 1)) == sent
    client.expect_silence()


def test_an_offset_applies_to_every_filter_of_its_packet(stage: Stage) -> None:
    topic = unique()
    sent = {f"{topic}/{name}": record(stage, f"{topic}/{name}", 5, stem=name.encode()) for name in "abc"}
    client = stage.connect()

    client.subscribe(*sent, qos=1, user_properties=ask("earliest"))

    came = read(client, 15)
    assert {name: [each.payload for each in came if each.topic == name] for name in sent} == sent


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ((("stream-offset", "yesterday"),), "'yesterday' is not a valid start"),
        ((("stream-offset", "-24"),), "has no unit"),
        ((("stream-offset", "2024-03-01T12:00:00+01:00"),), "is not a valid start"),
        ((("stream-offset", ""),), "is not a valid start"),
        ((("stream-offset", "-1h"), ("stream-offset", "-2h")), "given twice"),
        ((("stream-offset", "-1h"), ("replay-end", "yes")), "must be 0 or 1"),
        ((("replay-complete", ""),), "must be 0 or 1"),
    ],
)
def test_an_invalid_offset_is_rejected_with_a_clear_message(stage: Stage, pairs: tuple[tuple[str, str], ...], words: str) -> None:
    topic = unique()
    client = stage.connect()

    reasons, said = refusal(client.request_subscribe(f"{topic}/a", f"{topic}/b", user_properties=pairs))

    assert reasons == [Reason.IMPLEMENTATION_SPECIFIC_ERROR] * 2
    assert words in said
    record(stage, f"{topic}/a", 1)
    client.expect_silence()


def test_a_start_of_the_maximum_length_is_rejected(stage: Stage) -> None:
    client = stage.connect()

    reasons, said = refusal(client.request_subscribe("$replay/-1h," + "y" * 65_520 + "/t"))

    assert reasons == [Reason.IMPLEMENTATION_SPECIFIC_ERROR]
    assert said.startswith("unknown option 'yyy")
    client.ping()


@VERSIONS
@pytest.mark.parametrize(
    "written",
    [
        "$replay/soon/{}", "$replay/-1h,all/{}", "$replay/-1h", "$replay/-1h/", "$share/g/$replay/soon/{}",
        "$share/g/$replay/-1h,end/{}", "$replay/-1h/{}/#/x",
    ],
)  # fmt: skip
def test_an_incomplete_replay_filter_is_rejected_and_the_others_are_granted(stage: Stage, version: int, written: str) -> None:
    topic = unique()
    client = stage.connect(version=version)

    suback = client.request_subscribe(written.format(topic), topic, qos=1)

    assert suback.reasons[0] >= 0x80
    assert suback.reasons[1] == 1
    if version == MQTT5:
        assert suback.properties.reason_string
    else:
        assert suback.reasons[0] == 0x80
    (sent,) = record(stage, topic, 1)
    assert client.receive_publish().payload == sent
    client.expect_silence()


def test_access_is_decided_on_the_inner_filter(start: Start, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic write secret\ntopic readwrite open/#\n")
    stage = start(access={"acl_file": str(rules)})
    publisher = stage.connect()
    publisher.publish("secret", b"s", 1)
    publisher.publish("open/x", b"o", 1)
    client = stage.connect()

    suback = client.request_subscribe("$replay/earliest/secret", "$replay/earliest/#", "$replay/earliest/open/#", qos=1)

    assert suback.reasons == [Reason.NOT_AUTHORIZED, Reason.NOT_AUTHORIZED, 1]
    assert client.receive_publish().payload == b"o"
    client.expect_silence()


@VERSIONS
def test_a_replay_ends_when_access_is_withdrawn(start: Start, tmp_path: Path, version: int) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite #\n")
    stage = start(access={"acl_file": str(rules)}, mqtt={"inflight_max": 5})
    record(stage, "secret", 30)
    client = stage.connect(version=version)
    replay(client, "secret")
    first = client.receive_publishes(5)

    rules.write_text("topic write #\n")
    node = stage.broker.node
    assert node is not None
    stage.broker.run(node.access.reload())
    for each in first:
        client.acknowledge(each)

    client.expect_silence()


def test_a_start_before_the_retained_history_starts_there_and_reports_it(start: Start) -> None:
    stage = start()
    whole_from, kept = forget_first(stage, "t")
    client = stage.connect()

    suback = client.subscribe("t", qos=1, user_properties=ask("-1h", end=True))

    properties = dict(suback.properties.user_properties)
    seconds, _, micros = properties["replay-from"].rstrip("Z").partition(".")
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole_from // 1_000_000)) == seconds
    assert int(micros) == whole_from % 1_000_000
    assert properties["replay-from"] in (suback.properties.reason_string or "")
    assert bodies(read_to_end(client, "t")) == kept


def test_a_complete_replay_is_rejected_if_records_were_deleted(start: Start) -> None:
    stage = start()
    forget_first(stage, "t")
    client = stage.connect()

    reasons, said = refusal(client.request_subscribe("t", qos=1, user_properties=ask("-1h", complete=True)))

    assert reasons == [Reason.IMPLEMENTATION_SPECIFIC_ERROR]
    assert "the history of t goes back to 20" in said
    assert client.request_subscribe("$replay/-1h,complete/t").reasons == [Reason.IMPLEMENTATION_SPECIFIC_ERROR]
    assert stage.connect(version=MQTT311).request_subscribe("$replay/-1h,complete/t").reasons == [0x80]
    record(stage, "t", 1)
    client.expect_silence()


def test_a_complete_replay_is_granted_if_nothing_was_deleted(start: Start) -> None:
    stage = start()
    whole_from, kept = forget_first(stage, "t")
    client = stage.connect()

    client.subscribe("t", qos=1, user_properties=ask(str(whole_from // 1000 + 1), end=True, complete=True))
    since = bodies(read_to_end(client, "t"))
    client.subscribe("$replay/earliest,complete/t", qos=1)

    assert since == kept[-len(since) :]
    assert bodies(read(client, len(kept))) == kept


def test_records_deleted_by_retention_during_a_replay_are_counted(start: Start) -> None:
    stage = start(history={"shards": 1})
    sent = record(stage, "t", 20)
    name = unique()
    client = stage.connect(name, persistent=True, receive_maximum=2)
    replay(client, "t")
    client.receive_publishes(2)
    client.close()

    _, kept = forget(stage, "t")
    client = stage.connect(name, persistent=True)

    assert bodies(read(client, 8)) == sent[:2] + kept, "what was in flight, and what is left"
    client.expect_silence()
    assert stage.look(lambda inside: (present(inside.sessions.get(name)).gaps, inside.statistics.lost_to_retention)) == (1, 1)


def test_replays_beyond_the_limit_of_a_session_are_rejected(stage: Stage) -> None:
    topic = unique()
    record(stage, f"{topic}/x", 1, qos=1)
    client = stage.connect(receive_maximum=1)
    options = [f"$replay/-{number + 1}h/{topic}/#" for number in range(40)]

    suback = client.request_subscribe(*options, qos=1)

    granted = suback.reasons.count(1)
    assert suback.reasons == [1] * granted + [Reason.QUOTA_EXCEEDED] * (40 - granted)
    assert 16 <= granted < 40
    assert len(read(client, granted)) == granted, "every one of them shows the message"
    client.expect_silence()
    assert client.request_subscribe(*options[granted:], qos=1).reasons[0] == 1, "those that have caught up no longer count"


@VERSIONS
def test_unsubscribe_ends_a_running_replay(start: Start, version: int) -> None:
    stage = start(mqtt={"inflight_max": 10})
    sent = record(stage, "t", 50)
    client = stage.connect(version=version)
    written = replay(client, "t")
    first = client.receive_publishes(10)  # as many as may be in flight

    client.unsubscribe(written)
    for each in first:
        client.acknowledge(each)
    record(stage, "t", 1)

    assert bodies(first) == sent[:10]
    client.expect_silence()
    assert stage.look(lambda inside: len(inside.readers)) == 0


def test_resubscribing_continues_a_replay_or_restarts_it_with_a_new_offset(stage: Stage) -> None:
    topic = unique()
    sent = record(stage, topic, 50)
    client = stage.connect(receive_maximum=10)
    replay(client, topic, end=True)
    first = read(client, 5)

    before, _ = amid(client, Subscribe(client.next_packet_id(), [SubscribeOption(topic, 1)]), Suback)

    assert bodies(first + before + read_to_end(client, topic)) == sent
    client.subscribe(topic, qos=1, user_properties=ask("earliest", end=True))
    assert bodies(read_to_end(client, topic)) == sent


def test_a_resubscribed_replay_uses_its_new_options(stage: Stage) -> None:
    topic = unique()
    sent = record(stage, topic, 30)
    client = stage.connect(receive_maximum=2)
    replay(client, topic)
    client.receive_publishes(2)

    client.subscribe(topic, qos=0)
    client.send(Puback(1), Puback(2))

    came = client.receive_publishes(28)
    assert bodies(came) == sent[2:]
    assert {each.qos for each in came} == {0}


def test_a_plain_subscription_and_a_replay_of_one_filter_are_independent(stage: Stage) -> None:
    topic = unique()
    sent = record(stage, topic, 3)
    client = stage.connect()
    client.subscribe(topic, qos=1, subscription_identifiers=(1,))
    client.subscribe(f"$replay/earliest/{topic}", qos=0, subscription_identifiers=(2,))

    old = read(client, 3)
    record(stage, topic, 1, stem=b"both")
    both = client.receive_publish()
    client.unsubscribe(topic)
    record(stage, topic, 1, stem=b"one")
    one = client.receive_publish()
    client.unsubscribe(f"$replay/earliest/{topic}")
    record(stage, topic, 1)

    assert bodies(old) == sent
    assert [each.properties.subscription_identifiers for each in old] == [(2,)] * 3
    assert sorted(both.properties.subscription_identifiers) == [1, 2], "one copy for both"
    assert (both.qos, one.qos) == (1, 0)
    assert one.properties.subscription_identifiers == (2,)
    client.expect_silence()
