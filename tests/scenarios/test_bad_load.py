"""Clients that request too much, too fast, or do not read: other clients are unaffected and memory is bounded."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Callable, Iterator

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Publish, Suback
from tests.support.clients import raw
from tests.support.clients.wire import DEADLINE_S, Wire
from tests.support.flood import Flood, count_bytes, open_crowd, open_socket, send_until_blocked
from tests.support.present import present
from tests.support.stage import Stage, resident_bytes, wait_until

MIB = 1024 * 1024

# What anybody may have to wait for an answer while somebody else does their worst. On an idle machine it is some 10 ms.
PING_S_MAX = 2.0


def pings_for(victim: Wire, seconds: float) -> int:
    """How many pings are answered in this time, each within the bound."""
    until = time.monotonic() + seconds
    pings = 0
    while time.monotonic() < until:
        victim.send(b"\xc0\x00")
        assert victim.receive_frame(PING_S_MAX).raw == b"\xd0\x00"
        pings += 1
    return pings


def waiting_bytes(stage: Stage, client_id: str) -> int:
    """What the broker holds for a client that does not read: in its outbox and in its transport."""

    def look(inside: object) -> int:
        connection = present(stage.inside.sessions.get(client_id)).connection
        assert connection is not None
        return int(connection.outbox.size + connection.transport.get_write_buffer_size())

    return int(stage.look(look))


@pytest.mark.row(46)
def test_a_slow_qos_0_subscriber_has_a_bounded_outbox_and_counted_drops(start: Callable[..., Stage]) -> None:
    stage = start(limits={"outbox_bytes_max": "1MB"})
    slow, quick, publisher = stage.connect("slow"), stage.connect("quick"), stage.connect()
    slow.subscribe("t")
    quick.subscribe("t")
    before = resident_bytes()

    for _ in range(64):
        publisher.publish("t", bytes(MIB - 100))
        quick.receive(Publish)

    assert waiting_bytes(stage, "slow") <= 4 * MIB
    assert resident_bytes() - before < 32 * MIB
    received = [packet for packet in slow.drain() if isinstance(packet, Publish)]
    assert len(received) + stage.drops("outbox_full") == 64
    assert stage.drops("outbox_full") > 0


@pytest.mark.row(46)
def test_a_slow_qos_1_subscriber_has_a_bounded_queue_and_delays_its_publisher_briefly(
    start: Callable[..., Stage],
) -> None:
    stage = start(history={"topics": []}, session={"queue_messages_max": 20, "queue_wait": "100ms"}, mqtt={"inflight_max": 5})
    slow, publisher = stage.connect("slow"), stage.connect()
    slow.subscribe("t", qos=1)

    reasons = [publisher.publish("t", b"%d" % number, qos=1) for number in range(100)]

    assert set(reasons) == {0}
    assert stage.look(lambda inside: present(inside.sessions.get("slow")).flow.queue_messages()) == 20
    assert stage.drops("queue_full") == 75
    # What was first is kept, the newest was dropped.
    assert [slow.receive_publish().payload for _ in range(25)] == [b"%d" % number for number in range(25)]


@pytest.mark.row(46)
def test_many_retained_messages_are_sent_at_the_pace_of_the_subscriber(start: Callable[..., Stage]) -> None:
    count = 50_000
    stage = start(limits={"outbox_bytes_max": "64KB"})
    publisher = stage.connect(version=MQTT311)
    for part in range(0, count, 1000):
        publisher.send(b"".join(raw.publish(MQTT311, f"r/{n % 250}/{n}", bytes(64), flags=1) for n in range(part, part + 1000)))
    publisher.ping()
    reader, victim = stage.connect("reader"), stage.connect()

    reader.subscribe("#")
    pings_for(victim, 0.2)

    assert waiting_bytes(stage, "reader") <= MIB
    assert len({reader.receive(Publish).topic for _ in range(count)}) == count
    reader.expect_silence()


@pytest.mark.row(46)
def test_a_retained_search_without_matches_does_not_delay_other_clients(start: Callable[..., Stage]) -> None:
    count = 50_000
    stage = start()
    publisher = stage.connect(version=MQTT311)
    for part in range(0, count, 1000):
        publisher.send(b"".join(raw.publish(MQTT311, f"r/{n}/x", b"1", flags=1) for n in range(part, part + 1000)))
    publisher.ping()
    searcher, victim = stage.connect(), stage.connect()

    searcher.send(raw.subscribe(MQTT5, *((f"+/+/{number}", 0) for number in range(50))))
    assert searcher.receive(Suback).reasons == [0] * 50
    pings = 0
    while stage.look(lambda inside: present(inside.sessions.get(searcher.client_id)).feeds):
        victim.ping()
        pings += 1

    # Two and a half million topics are looked at, which takes the broker about a second.
    assert pings >= 5


def bush() -> list[str]:
    """Filters that share no path, and each level of a topic that fits doubles the number of paths to follow."""
    return ["/".join(path) for path in itertools.product("+a", repeat=12)]


def unique_topics(stem: str) -> Iterator[bytes]:
    """PUBLISHes to topics that nobody has used before."""
    for number in itertools.count():
        yield b"".join(raw.publish(MQTT311, f"{stem}{number}/{more}", b"") for more in range(5000))


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "pings": lambda: itertools.repeat(b"\xc0\x00" * 131_072),
    "subscriptions": lambda: itertools.repeat(raw.subscribe(MQTT311, ("a/b", 0)) * 20_000),
    "wildcards": lambda: itertools.repeat(raw.subscribe(MQTT311, ("+/b/#", 0)) * 20_000),
    "coming and going": lambda: itertools.repeat((raw.subscribe(MQTT311, ("a", 0)) + raw.unsubscribe(MQTT311, "a")) * 10_000),
    "stray acknowledgements": lambda: itertools.repeat(b"\x62\x02\x00\x01" * 65_536),
    "new topics": lambda: unique_topics("n/"),
    "a bush of wildcards": lambda: unique_topics("a/" * 12),
}


@pytest.mark.row("N3")
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_busy_client_does_not_delay_others(start: Callable[..., Stage], attack: Callable[[], Iterator[bytes]]) -> None:
    stage = start()
    gardener, victim = stage.connect(), stage.connect()
    filters = bush()
    for at in range(0, len(filters), 512):
        gardener.subscribe(*filters[at : at + 512])

    with Flood(stage.broker.host, stage.broker.port, attack()) as flood:
        wait_until(lambda: flood.sent_bytes > 0, "the flood has begun")
        pings = pings_for(victim, 0.5)

    assert pings >= 1


@pytest.mark.row("N3")
def test_publishing_to_thousands_of_subscribers_does_not_delay_other_clients(start: Callable[..., Stage]) -> None:
    stage = start()
    # Both ends of each connection are files of this process.
    count = min(5000, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500) // 2)
    address = (stage.broker.host, stage.broker.port)
    crowd = open_crowd(*address, count, "t")
    victim = stage.connect()

    with Flood(*address, itertools.repeat(raw.publish(MQTT311, "t", bytes(16)) * 10)) as flood:
        wait_until(lambda: flood.sent_bytes > 0, "the flood has begun")
        pings = pings_for(victim, 1)

    assert pings >= 1
    for each in crowd:
        each.close()


UNREAD = {
    "pings": b"\xc0\x00" * 32_768,
    "qos 1": raw.publish(MQTT311, "t", flags=2, packet_id=1) * 8192,
    "qos 2": raw.publish(MQTT311, "t", flags=4, packet_id=1) * 8192,
    "pubrel": b"\x62\x02\x00\x01" * 16_384,
    "subscribe": raw.subscribe(MQTT311, ("t", 0)) * 4096,
}


@pytest.mark.row("N2")
@pytest.mark.parametrize("kind", UNREAD)
def test_the_broker_stops_reading_from_a_client_that_does_not_read_its_answers(start: Callable[..., Stage], kind: str) -> None:
    stage = start(limits={"outbox_bytes_max": "64KB"})
    deaf = open_socket(stage.broker.host, stage.broker.port, receive_buffer_bytes=4096)
    (name,) = stage.look(lambda inside: [session.client_id for session in inside.sessions])

    sent = send_until_blocked(deaf, UNREAD[kind], 64 * MIB)

    assert sent < 64 * MIB, "the broker has stopped reading"
    assert waiting_bytes(stage, name) <= 2 * MIB
    stage.connect().ping()
    deaf.close()


@pytest.mark.row("N2")
def test_a_client_that_reads_its_answers_late_gets_all_of_them(start: Callable[..., Stage]) -> None:
    stage = start(limits={"outbox_bytes_max": "64KB"})
    late = open_socket(stage.broker.host, stage.broker.port)

    sent = send_until_blocked(late, UNREAD["pings"], 64 * MIB)
    answered = count_bytes(late, sent)

    assert answered == sent, "a PINGRESP is as long as a PINGREQ"
    late.close()


@pytest.mark.row("N2")
def test_a_client_that_reads_nothing_is_closed_by_its_keep_alive(start: Callable[..., Stage]) -> None:
    stage = start(limits={"outbox_bytes_max": "64KB"}, mqtt={"keep_alive_max": 1})
    deaf = open_socket(stage.broker.host, stage.broker.port, receive_buffer_bytes=4096)

    send_until_blocked(deaf, UNREAD["pings"], 64 * MIB)

    wait_until(lambda: stage.look(lambda inside: inside.statistics.disconnects[0x8D]) == 1, "it is cut off")
    deaf.close()


@pytest.mark.row("N2")
def test_long_topics_are_not_cached(stage: Stage) -> None:
    client = stage.connect(version=MQTT311)
    client.publish("warm", bytes(60_000))
    before = resident_bytes()

    for number in range(200):
        client.send(b"".join(raw.publish(MQTT311, f"{number}/{more}/" + "x" * 60_000) for more in range(10)))
    client.ping()

    # They have 120 MB.
    assert resident_bytes() - before < 40 * MIB


@pytest.mark.row("N2")
def test_a_large_message_is_stored_once_for_many_offline_clients(start: Callable[..., Stage]) -> None:
    stage = start()
    for number in range(50):
        away = stage.connect(f"away{number}", persistent=True)
        away.subscribe("t", qos=1)
        away.close()
    publisher = stage.connect()
    before = resident_bytes()

    publisher.publish("t", bytes(900_000), qos=1)

    assert resident_bytes() - before < 10 * MIB
    back = stage.connect("away7", persistent=True)
    assert len(back.receive(Publish, DEADLINE_S).payload) == 900_000
