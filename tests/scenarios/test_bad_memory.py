"""Messages that clients leave with the broker or do not fetch are on disk or bounded for the whole node."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from braidmq.lane.flows.packed_deliveries import PACKED_BYTES
from braidmq.mqtt.packets import MQTT5, Connack, Puback, Publish, Will
from braidmq.mqtt.properties import Properties
from tests.support.clients import raw
from tests.support.clients.wire import Wire
from tests.support.held import message_bytes
from tests.support.present import present
from tests.support.stage import Stage, resident_bytes, wait_until

MIB = 1024 * 1024


def take_without_answer(reader: Wire, count: int) -> list[Publish]:
    """So many messages, none of which is acknowledged."""
    return [reader.receive(Publish) for _ in range(count)]


@pytest.mark.row(52)
def test_inflight_messages_of_offline_clients_leave_memory_and_are_resent(start: Callable[..., Stage]) -> None:
    stage = start()
    sender, count, clients = stage.connect(), 8, 30
    for number in range(count):
        sender.publish(f"big/{number}", bytes(MIB - 100), 1)
    before, memory = message_bytes(), 0

    for client in range(clients):
        reader = stage.connect(f"reader{client}", clean_start=False, session_expiry_interval=1000)
        reader.subscribe("$replay/earliest/big/#", qos=1)
        assert len(take_without_answer(reader, count)) == count
        reader.close()
        wait_until(lambda: stage.look(lambda inside: not inside.statistics.live - 1), "the reader is gone")
        memory = memory or resident_bytes()

    assert message_bytes() - before < 2 * MIB
    assert stage.look(lambda inside: inside.state.held_bytes) == count * clients * PACKED_BYTES
    assert stage.look(lambda inside: inside.holdings.let_go) == count * clients
    assert resident_bytes() - memory < 100 * MIB  # it would be 240 MiB
    back = stage.connect("reader0", clean_start=False, session_expiry_interval=1000)
    assert {packet.topic for packet in take_without_answer(back, count)} == {f"big/{number}" for number in range(count)}


@pytest.mark.row(52)
def test_small_inflight_messages_of_offline_clients_take_a_few_bytes_each(start: Callable[..., Stage]) -> None:
    stage = start()
    sender, count, clients = stage.connect(), 1000, 20
    for number in range(count):
        sender.send(Publish("small", b"%d " % number + bytes(100), 1, packet_id=number % 60_000 + 1))
        sender.receive(Puback)

    def take_and_leave(number: int) -> None:
        reader = stage.connect(f"reader{number}", clean_start=False, session_expiry_interval=1000)
        reader.subscribe("$replay/earliest/small", qos=1)
        take_without_answer(reader, count)
        reader.close()
        wait_until(lambda: stage.look(lambda inside: not inside.statistics.live - 1), "the reader is gone")

    take_and_leave(0)
    tracemalloc.start()
    try:
        for number in range(1, clients):
            take_and_leave(number)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert stage.look(lambda inside: inside.state.held_bytes) == count * clients * PACKED_BYTES
    assert taken / clients < 12 * 1024 + 2 * count * PACKED_BYTES


@pytest.mark.row(52)
def test_the_queues_of_offline_clients_have_a_common_bound(start: Callable[..., Stage]) -> None:
    stage = start(limits={"held_bytes_max": 8 * MIB}, session={"queue_qos0": True}, history={"topics": []})
    for number in range(20):
        stage.connect(f"absent{number}", session_expiry_interval=1000).subscribe("t")
    stage.wires.close()
    stage.wait_empty()
    sender = stage.connect()

    for _ in range(40):
        sender.publish("t", bytes(100_000))
    sender.ping()

    assert 4 * MIB < stage.look(lambda inside: inside.state.held_bytes) <= 8 * MIB
    kept = stage.look(
        lambda inside: [present(inside.sessions.get(f"absent{number}")).flow.queue_messages() for number in range(20)]
    )
    assert sum(kept) + stage.drops("memory_full") == 20 * 40
    assert min(kept) > 0, "nobody loses everything"


@pytest.mark.row(52)
def test_the_outboxes_of_slow_clients_have_a_common_bound(start: Callable[..., Stage]) -> None:
    stage = start(limits={"outboxes_bytes_max": 2 * MIB})
    slow = [stage.connect() for _ in range(10)]
    quick, sender = stage.connect(), stage.connect()
    for each in (*slow, quick):
        each.subscribe("t")

    # The kernel takes some megabytes for each of them.
    for _ in range(300):
        sender.publish("t", bytes(64 * 1024))
        quick.receive(Publish)

    assert stage.look(lambda inside: inside.state.unread_bytes) <= 2 * MIB + 10 * 65 * 1024
    assert stage.drops("outbox_full") > 0
    received = [sum(isinstance(packet, Publish) for packet in each.drain()) for each in slow]
    assert sum(received) + stage.drops("outbox_full") == 300 * 10
    wait_until(lambda: stage.look(lambda inside: inside.state.unread_bytes) == 0, "everything was taken")


@pytest.mark.row(52)
def test_incomplete_packets_have_a_common_bound_and_the_slowest_is_closed(start: Callable[..., Stage]) -> None:
    stage = start(limits={"parts_bytes_max": 2 * MIB})
    whole = raw.publish(MQTT5, "t", bytes(900_000))
    slow = [stage.connect() for _ in range(4)]

    def bytes_seen() -> int:
        return int(stage.look(lambda inside: inside.parts.size_bytes + inside.parts.closed * 800_000))

    for each in slow:
        before = bytes_seen()
        each.send(whole[:800_000])
        wait_until(lambda least=before + 800_000: bytes_seen() >= least, "it came")  # type: ignore[misc]

    slow[0].expect_disconnect(0x97)
    slow[1].expect_disconnect(0x97)
    for each in slow[2:]:
        each.send(whole[800_000:])
        each.ping()
    sender = stage.connect()
    for _ in range(20):
        sender.send(whole)
    sender.ping()
    assert stage.look(lambda inside: inside.parts.closed) == 2


@pytest.mark.row(52)
def test_large_wills_have_a_common_bound_and_small_ones_are_always_accepted(start: Callable[..., Stage]) -> None:
    stage = start(limits={"held_bytes_max": MIB})

    for number in range(5):
        stage.connect(f"client{number}", will=Will("w", bytes(50_000)))

    refused = stage.open()
    refused.send_request(will=Will("w", bytes(50_000)))
    refused.expect_refusal(0x97)
    stage.connect("small", will=Will("w", bytes(500)))
    assert stage.look(lambda inside: inside.sessions.will_bytes) == 5 * 50_001


@pytest.mark.row(52)
@pytest.mark.parametrize(
    "properties",
    [
        Properties(will_delay_interval=1000, user_properties=(("", ""),) * 3000),
        Properties(will_delay_interval=1000, user_properties=tuple((str(each + 100), str(each + 200)) for each in range(3000))),
        Properties(will_delay_interval=1000, content_type="x" * 60_000),
        Properties(will_delay_interval=1000, content_type="\U0001f600" + "x" * 60_000),
    ],
    ids=["empty pairs", "short pairs", "content type", "wide text"],
)
def test_will_properties_count_with_their_memory_size(start: Callable[..., Stage], properties: Properties) -> None:
    stage = start(limits={"held_bytes_max": 4 * MIB}, history={"topics": []})
    stage.connect("first", will=Will("w", b"", properties=Properties(user_properties=(("a", "b"),))))

    def leave_will(number: int) -> int:
        client = stage.open()
        client.send_request(client_id=f"client{number}", session_expiry_interval=1000, will=Will("w", b"", properties=properties))
        return client.receive(Connack).reason

    tracemalloc.start()
    try:
        reasons = [leave_will(number) for number in range(100)]
        stage.wires.close()
        stage.wait_empty()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    accepted = reasons.count(0)
    assert set(reasons) == {0, 0x97}
    assert stage.look(lambda inside: inside.sessions.will_bytes) <= MIB
    assert taken < MIB + (accepted + 10) * 12 * 1024


@pytest.mark.row(53)
def test_large_delayed_messages_are_stored_on_disk_up_to_a_bound(
    start: Callable[..., Stage],
) -> None:
    stage = start(delayed={"bytes_max": 40 * MIB})
    sender, receiver = stage.connect(), stage.connect()
    receiver.subscribe("big", qos=1)
    before = message_bytes()

    reasons = [sender.publish("$delayed/3600/big", bytes(MIB - 100), 1) for _ in range(50)]

    assert (reasons.count(0), reasons.count(0x97)) == (40, 10)
    assert stage.drops("delayed_full") == 10
    assert message_bytes() - before < 2 * MIB
    assert sender.publish("$delayed/1/big", bytes(1000), 1) == 0, "what is small enough still has a place"
    assert receiver.receive_publish().payload == bytes(1000)
    assert stage.look(lambda inside: inside.delayed.size_bytes) == 40 * (MIB - 100 + len("big"))


@pytest.mark.row(54)
def test_large_retained_messages_are_stored_on_disk_up_to_a_bound(
    start: Callable[..., Stage],
) -> None:
    stage = start(retained={"bytes_max": 40 * MIB})
    sender, victim = stage.connect(), stage.connect()
    before = message_bytes()

    reasons = [sender.publish(f"big/{number}", bytes(MIB - 2000), 1, retain=True) for number in range(50)]

    assert (reasons.count(0x10), reasons.count(0x97)) == (40, 10)
    assert stage.drops("retained_full") == 10
    assert message_bytes() - before < 2 * MIB
    readers = [stage.connect() for _ in range(5)]
    for reader in readers:
        reader.subscribe("big/#")
    victim.ping()
    for reader in readers:
        assert {reader.receive_publish().topic for _ in range(40)} == {f"big/{number}" for number in range(40)}
    assert message_bytes() - before < 8 * MIB
