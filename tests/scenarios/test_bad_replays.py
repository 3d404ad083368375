"""Clients that replay more than their share do not delay the replays of others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from braidmq.broker.broker import Broker as Inside
from braidmq.broker.reading.replay import READERS_MAX, REPLAYS_MAX
from braidmq.mqtt.packets import MQTT5, MQTT311, Puback, Publish, Suback
from tests.support.clients import raw
from tests.support.flood import Flood
from tests.support.stage import Stage, wait_until

QUOTA_EXCEEDED = 0x97


def record(stage: Stage, count: int) -> None:
    """Let so many messages be recorded under ``r/``."""
    publisher = stage.connect()
    for first in range(1, count + 1, 500):
        numbers = range(first, min(first + 500, count + 1))
        publisher.send(b"".join(raw.publish(MQTT5, f"r/{n % 7}", b"%d" % n, flags=2, packet_id=n) for n in numbers))
        for _ in numbers:
            publisher.receive(Puback)


def group_filters(name: str, count: int, qos: int) -> list[tuple[str | bytes, int]]:
    return [(f"$share/{name}{number}/$replay/earliest/r/#", qos) for number in range(count)]


def replaying(inside: Inside) -> int:
    """How many groups still read what is older than they are."""
    return sum(group.log.is_replaying for group in inside.groups)


@pytest.mark.row(50)
def test_replaying_groups_count_against_the_limit_of_the_session_that_created_them(start: Callable[..., Stage]) -> None:
    stage = start(mqtt={"inflight_max": 1})
    record(stage, 2)
    client = stage.connect()

    client.send(raw.subscribe(MQTT5, ("$replay/earliest/r/1", 1), *group_filters("g", 300, 1)))
    suback = next(packet for packet in iter(lambda: client.receive_any(), None) if isinstance(packet, Suback))

    assert suback.reasons == [1] * REPLAYS_MAX + [QUOTA_EXCEEDED] * (301 - REPLAYS_MAX)
    assert "replays are running already" in (suback.properties.reason_string or "")


@pytest.mark.row(50)
def test_a_group_that_has_caught_up_no_longer_counts(start: Callable[..., Stage]) -> None:
    stage = start()
    client = stage.connect()
    for first in range(0, 3 * REPLAYS_MAX, REPLAYS_MAX):
        client.send(raw.subscribe(MQTT5, *group_filters(f"g{first}-", REPLAYS_MAX, 1)))
        assert client.receive(Suback).reasons == [1] * REPLAYS_MAX

        wait_until(lambda: stage.look(replaying) == 0, "nothing is left to replay")


@pytest.mark.row(50)
def test_replays_through_many_groups_do_not_delay_the_first_record_of_other_clients(start: Callable[..., Stage]) -> None:
    stage = start()
    record(stage, 5000)
    clients = READERS_MAX // REPLAYS_MAX + 1
    with ExitStack() as stack:
        for number in range(clients):
            packet = raw.subscribe(MQTT311, *group_filters(f"c{number}-", REPLAYS_MAX, 0))
            stack.enter_context(Flood(stage.broker.host, stage.broker.port, [packet]))
        wait_until(lambda: stage.look(lambda inside: inside.readers.waiting) > 0, "all places are taken")

        victim = stage.connect()
        victim.send(raw.subscribe(MQTT5, ("$replay/earliest/r/#", 0)))
        victim.receive(Suback)
        first = victim.receive(Publish)
        left = stage.look(replaying)

    assert first.payload == b"1"
    # First come, first served, it would have had a place when so many groups were done that fewer than these are left.
    assert left >= READERS_MAX
