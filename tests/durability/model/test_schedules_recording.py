"""The named schedules about what is recorded, retained and let go (S4, S6, S9, S16)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from braidmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import LogOptions
from tests.support.simulator.peer import payloads
from tests.support.simulator.world import World

CRASHES = [pytest.param(False, id="the process dies"), pytest.param(True, id="the machine loses power")]


def history_of(world: World, topic_filter: str = "#") -> list[bytes]:
    """What somebody who reads history finds."""
    replay = world.log.replay([topic_filter], 0)
    found: list[bytes] = []
    while not replay.is_caught_up:
        found += [record.payload for _, record in replay.next(100)]
    return found


# S4: what history does not cover

NO_HISTORY = [pytest.param({"topics": []}, id="no topics"), pytest.param({"min_qos": 2}, id="QoS 2 only")]


@pytest.mark.parametrize("history", NO_HISTORY)
def test_s4_messages_outside_history_wait_for_an_offline_durable_session(history: dict[str, Any]) -> None:
    with World(history=history) as world:
        subscriber = world.connect("s")
        subscriber.subscribe("office/#", qos=1)
        subscriber.disconnect()
        publisher = world.connect("p", expiry=0)
        publisher.publish("office/x", b"wanted")
        publisher.publish("cellar/x", b"nobody's")

        world.crash(loses_power=True)

        assert payloads(world.connect("s").acknowledge_all()) == [b"wanted"]
        assert history_of(world) == [], "recorded for a session alone, and history shows it"


@pytest.mark.parametrize("history", NO_HISTORY)
@pytest.mark.parametrize("is_recorded_first", [True, False])
def test_s4_a_changed_history_setting_neither_loses_nor_repeats_messages(
    history: dict[str, Any], is_recorded_first: bool
) -> None:
    whole: dict[str, Any] = {"topics": ["#"], "min_qos": 0}
    first, second = (whole, history) if is_recorded_first else (history, whole)
    with World(history=first) as world:
        subscriber = world.connect("s")
        subscriber.subscribe("office/#", qos=1)
        subscriber.disconnect()
        world.connect("p", expiry=0).publish("office/x", b"1")

        world.restart(history=second)
        world.connect("p", expiry=0).publish("office/x", b"2")
        subscriber = world.connect("s")
        assert payloads(subscriber.acknowledge_all()) == [b"1", b"2"]
        publisher = world.connect("p", expiry=0)
        publisher.publish("office/x", b"3")
        world.restart(history=first)

        subscriber = world.connect("s")
        assert payloads(subscriber.acknowledge_all()) == [b"3"]
        assert history_of(world) == ([b"1"] if is_recorded_first else [b"2", b"3"])


# S6: nobody sees a recorded message before its commit


@pytest.mark.parametrize("expiry", [0, 1000], ids=["memory", "durable"])
def test_s6_a_message_resent_before_its_commit_is_delivered_once(expiry: int) -> None:
    with World() as world:
        subscriber = world.connect("s", expiry=expiry)
        subscriber.subscribe("t")
        publisher = world.connect("p")
        publisher.send(Publish("t", b"m", 2, packet_id=7))
        world.turn(3)
        assert world.is_writing
        assert subscriber.take() == [], "shown before it is on disk"

        publisher.cut()
        again = world.open()
        again.request_connect("p")
        again.send(Publish("t", b"m", 2, dup=True, packet_id=7))
        world.turn(3)
        assert subscriber.take() == []
        packets = again.receive()

        assert [packet.packet_id for packet in packets if isinstance(packet, Pubrec)] == [7]
        assert payloads(subscriber.acknowledge_all()) == [b"m"]
        again.send(Pubrel(7))
        assert again.expect(Pubcomp) == Pubcomp(7)


def test_s6_an_uncommitted_message_is_delivered_to_no_subscriber() -> None:
    with World() as world:
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("t")
        publisher = world.connect("p")
        publisher.send(Publish("t", b"m", 2, packet_id=7))
        world.turn(3)
        assert (subscriber.take(), publisher.take()) == ([], [])

        world.crash(loses_power=True)

        assert history_of(world) == []
        subscriber = world.connect("s", expiry=0)
        subscriber.subscribe("t")
        publisher = world.connect("p")
        publisher.send(Publish("t", b"m", 2, dup=True, packet_id=7))
        assert publisher.expect(Pubrec).packet_id == 7
        assert payloads(subscriber.acknowledge_all()) == [b"m"]


# S9: retained messages


@pytest.mark.parametrize("history", [{}, {"topics": []}], ids=["recorded", "not recorded"])
def test_s9b_an_acknowledged_retained_message_survives_a_crash(history: dict[str, Any]) -> None:
    with World(history=history) as world:
        publisher = world.connect("p")
        publisher.publish("t", b"old", retain=True)
        publisher.send(Publish("t", b"new", 1, True, packet_id=9))
        world.turn(3)
        assert publisher.take() == [], "acknowledged before it is on disk"
        assert publisher.expect(Puback).packet_id == 9

        world.crash(loses_power=True)

        assert payloads(world.connect("s").subscribe("t")) == [b"new"]


@pytest.mark.parametrize("loses_power", CRASHES)
def test_s9b_record_and_retained_message_are_stored_together_or_not_at_all(loses_power: bool) -> None:
    with World() as world:
        publisher = world.connect("p")
        publisher.publish("t", b"old", retain=True)
        publisher.send(Publish("t", b"new", 1, True, packet_id=9))
        world.turn(3)
        assert world.is_writing

        world.crash(loses_power=loses_power)

        expected = [b"old"] if loses_power else [b"old", b"new"]
        assert history_of(world) == expected
        assert payloads(world.connect("s").subscribe("t")) == expected[-1:]


@pytest.mark.parametrize("topic_filter", ["t/1", "t/+", "#"])
@pytest.mark.parametrize("expiry", [0, 1000], ids=["memory", "durable"])
def test_s9c_a_new_subscriber_does_not_end_with_a_stale_value(topic_filter: str, expiry: int) -> None:
    with World() as world:
        publisher = world.connect("p")
        for number in range(3):
            publisher.publish(f"t/{number}", b"v1", retain=True)
        subscriber = world.connect("s", expiry=expiry, receive_maximum=1)

        packets = subscriber.subscribe(topic_filter, qos=1)
        publisher.publish("t/1", b"v2", retain=True)
        for packet in packets:
            assert isinstance(packet, Publish)
            assert packet.packet_id is not None
            subscriber.send(Puback(packet.packet_id))
        got = [*packets, *subscriber.acknowledge_all()]

        values = [packet.payload for packet in got if isinstance(packet, Publish) and packet.topic == "t/1"]
        assert values[-1] == b"v2"
        assert values == sorted(values), "a value came back after it was replaced"


# S16: retention against sessions


def test_s16_messages_deleted_by_retention_are_counted_and_reported_on_reconnect() -> None:
    single = LogOptions(limits=EpochLimits(count_max=1), tail_bytes_max=0)
    with World(single, history={"retention": "1h"}) as world:
        subscriber = world.connect("s", expiry=30 * 86400)
        subscriber.subscribe("t")
        subscriber.disconnect()
        publisher = world.connect("p", expiry=0)
        for number in range(3):
            publisher.publish("t", b"%d" % number)
        last = max(world.log.watermarks.values())

        world.log.retain(last + 3_600_000_000)  # all but the last record of each shard are more than an hour old
        world.settle()
        publisher.publish("t", b"later")
        subscriber = world.connect("s")

        told = dict(subscriber.connack.properties.user_properties)
        kept = payloads(subscriber.acknowledge_all())
        assert kept[-1] == b"later"
        assert len(kept) < 4, "nothing was taken, so nothing is shown here"
        session = world.broker.sessions.get("s")
        assert session is not None
        assert session.gaps == 1
        assert world.broker.statistics.lost_to_retention == 1
        floor = datetime.fromisoformat(told["session-gap"])
        assert floor.timestamp() <= last / 1_000_000 + 0.001


def test_s16_an_inflight_message_deleted_by_retention_is_released_and_counted() -> None:
    single = LogOptions(limits=EpochLimits(count_max=1), tail_bytes_max=0)
    with World(single, history={"retention": "1h"}) as world:
        subscriber = world.connect("s", expiry=30 * 86400)
        subscriber.subscribe("t", qos=1)
        publisher = world.connect("p", expiry=0)
        publisher.publish("t", b"in flight")
        assert payloads(subscriber.receive()) == [b"in flight"]
        subscriber.cut()
        world.settle()
        publisher.publish("t", b"later")

        world.log.retain(max(world.log.watermarks.values()) + 3_600_000_000)
        world.settle()
        world.restart()
        subscriber = world.connect("s")

        assert payloads(subscriber.acknowledge_all()) == [b"later"]
        session = world.broker.sessions.get("s")
        assert session is not None
        assert (session.lost, session.flow.inflight_messages()) == (1, 0)
