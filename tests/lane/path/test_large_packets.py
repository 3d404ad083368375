"""Large packets share a part of each turn, and smaller ones do not wait for them."""

from __future__ import annotations

from braidmq.lane.path.channel_reader import HOLD_TURN
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Packet, Publish, Subscribe, SubscribeOption
from tests.support.simulator.lane import Bench


def frames(*packets: Packet) -> bytes:
    return b"".join(encode(packet, MQTT5) for packet in packets)


def in_one_turn(bench: Bench) -> None:
    """From now on turns end only when the test says so."""
    bench.state.on_turn = lambda: None


def test_the_large_packets_of_all_clients_share_one_part_of_a_turn() -> None:
    bench = Bench(work_max=20_000)
    in_one_turn(bench)
    crowd = [bench.channel(bench.flow(f"client {i}"), MQTT5) for i in range(20)]
    large = frames(Publish("t" * 65_000, b""))

    for client in crowd:
        client.read(large)
    begun = [client for client in crowd if client.messages_received]

    assert 0 < len(begun) < 5
    for client in crowd:
        if client not in begun:
            assert (client.hold_bits, client.transport.is_reading) == (HOLD_TURN, False)
            client.resume(HOLD_TURN)
    assert [(client.messages_received, client.hold_bits) for client in crowd] == [(1, 0)] * 20


def test_a_small_packet_is_read_in_a_turn_whose_share_for_large_ones_is_used_up() -> None:
    bench = Bench(work_max=20_000)
    in_one_turn(bench)
    greedy, modest = bench.channel(bench.flow("greedy"), MQTT5), bench.channel(bench.flow("modest"), MQTT5)

    for number in range(3):
        greedy.read(frames(Publish(f"{number}" + "t" * 65_000, b"")))
    modest.read(frames(Publish("t", b"x" * 1000)))

    assert greedy.hold_bits == HOLD_TURN
    assert (modest.messages_received, modest.hold_bits) == (1, 0)


def test_another_turn_has_room_for_other_large_packets() -> None:
    bench = Bench(work_max=20_000)
    client = bench.channel(bench.flow("client"), MQTT5)

    for _ in range(20):
        client.read(frames(Publish("t" * 65_000, b"")))

    assert (client.messages_received, client.holds) == (20, [])


def test_large_packets_that_the_broker_decodes_share_a_turn_too() -> None:
    bench = Bench(work_max=20_000)
    in_one_turn(bench)
    client = bench.channel(bench.flow("client"), MQTT5)

    client.read(frames(Subscribe(1, [SubscribeOption("x" * 5000, 0)])) * 20)

    assert 0 < len(client.packets) < 5
    while client.hold_bits:
        before = len(client.packets)
        client.resume(HOLD_TURN)
        assert before < len(client.packets) < before + 5
    assert len(client.packets) == 20


def test_payloads_that_are_only_forwarded_are_read_at_once() -> None:
    bench = Bench(work_max=20_000)
    in_one_turn(bench)
    crowd = [bench.channel(bench.flow(f"client {i}"), MQTT5) for i in range(10)]

    for client in crowd:
        client.read(frames(Publish("t", bytes(8000))) * 32)

    assert [(client.messages_received, client.hold_bits) for client in crowd] == [(32, 0)] * 10
