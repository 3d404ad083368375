"""Very deep and very long filters: their cost is bounded for each client and each topic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, Publish, Suback
from tests.support.clients import raw
from tests.support.clients.wire import Wire
from tests.support.present import present
from tests.support.stage import Stage, resident_bytes

MIB = 1024 * 1024
QUOTA_EXCEEDED = 0x97


def subscribe(client: Wire, filters: list[str]) -> list[int]:
    """SUBSCRIBE in packets of a bounded size; the reasons."""
    reasons: list[int] = []
    for first in range(0, len(filters), 100):
        client.send(raw.subscribe(MQTT5, *((each, 0) for each in filters[first : first + 100])))
        reasons += client.receive(Suback).reasons
    return reasons


def deep(count: int, levels: int = 128) -> list[str]:
    return ["/".join(f"{number}-{level}" for level in range(levels - 1)) + "/#" for number in range(count)]


@pytest.mark.row(51)
def test_filters_beyond_a_clients_total_of_levels_are_rejected(start: Callable[..., Stage]) -> None:
    stage = start(session={"filter_levels_max": 1280})
    client = stage.connect()

    assert subscribe(client, deep(12)) == [0] * 10 + [QUOTA_EXCEEDED] * 2
    assert subscribe(client, deep(10)) == [0] * 10, "what is there may be renewed"
    client.unsubscribe(deep(1)[0])
    assert subscribe(client, ["a/+", "b/+", deep(12)[11]]) == [0, 0, QUOTA_EXCEEDED]


@pytest.mark.row(51)
def test_filters_beyond_a_clients_total_of_bytes_are_rejected(start: Callable[..., Stage]) -> None:
    stage = start(session={"filter_bytes_max": "100KB"})
    client = stage.connect()

    assert subscribe(client, [f"{number}" + "x" * 30_000 for number in range(5)]) == [0] * 3 + [QUOTA_EXCEEDED] * 2
    assert subscribe(client, ["short"]) == [0]


@pytest.mark.row(51)
@pytest.mark.parametrize("form", ["$share/{}/t", "$share/{}/$replay/latest/t", "$exclusive/{}", "$replay/latest/{}"])
def test_filter_bytes_are_counted_as_the_client_sent_them(start: Callable[..., Stage], form: str) -> None:
    stage = start(session={"filter_bytes_max": "100KB"})
    client = stage.connect()
    filters = [form.format(f"{number}" + "x" * 30_000) for number in range(5)]

    assert subscribe(client, filters) == [0] * 3 + [QUOTA_EXCEEDED] * 2
    client.unsubscribe(filters[0])
    assert subscribe(client, filters[1:4]) == [0] * 3, "what was let go no longer counts"
    for each in filters[1:4]:
        client.unsubscribe(each)
    assert stage.look(lambda inside: present(inside.sessions.get(client.client_id)).filter_bytes) == 0


@pytest.mark.row(51)
def test_deep_filters_use_little_more_memory_than_their_bytes(start: Callable[..., Stage]) -> None:
    stage = start(session={"filter_levels_max": 10_000_000, "filter_bytes_max": "100MB"})
    client = stage.connect()
    filters = deep(3000)
    size = sum(map(len, filters))
    before = resident_bytes()

    assert set(subscribe(client, filters)) == {0}

    # The text is there as the client wrote it, as bytes, and as a label; a node for each level would be 35 KiB for each filter.
    assert resident_bytes() - before < 4 * size + 16 * MIB


@pytest.mark.row(51)
def test_deep_filters_get_matching_messages(stage: Stage) -> None:
    client, publisher = stage.connect(), stage.connect()
    path = "/".join("abcdefgh"[level % 8] for level in range(127))
    subscribe(client, [path + "/#", path.replace("h", "+") + "/x", path + "/+", "a/b/#", path[:-1] + "z/#"])

    publisher.publish(path + "/x", b"1", qos=1)

    assert client.receive(Publish).payload == b"1"
    client.expect_silence()
