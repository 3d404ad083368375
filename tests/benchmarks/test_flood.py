"""The load generator tells the truth: what is lost, repeated or delayed on the way is seen."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks.measure import Run, build
from tests.benchmarks.packet_stream import packets

pytestmark = pytest.mark.needs("gcc")

Forward = Callable[[int, bytes], list[bytes]]


@pytest.fixture(scope="module")
def flood(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("flood"), "flood")


class FakeBroker:
    """Takes one publisher and one subscriber; ``forward`` says what becomes of the n-th QoS 0 message."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.subscriber: socket.socket | None = None
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(stream,), daemon=True).start()

    def _serve(self, stream: socket.socket) -> None:
        count = 0
        try:
            for first, _, whole in packets(stream):
                if first == 0x10:
                    stream.sendall(b"\x20\x02\x00\x00")
                elif first == 0x82:
                    self.subscriber = stream
                    stream.sendall(b"\x90\x03\x00\x01\x00")
                elif first == 0x30:
                    count += 1
                    assert self.subscriber is not None
                    self.subscriber.sendall(b"".join(self.forward(count, whole)))
        except OSError:
            pass  # the generator has left


def run_flow(flood: Path, forward: Forward, *words: str) -> dict[str, float]:
    broker = FakeBroker(forward)
    command = [str(flood), "flow", "-p", str(broker.port), "-m", "pair", "-P", "1", "-q", "0", "-d", "1", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    finally:
        broker.server.close()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_a_faithful_broker_loses_and_repeats_nothing(flood: Path) -> None:
    found = run_flow(flood, lambda _, message: [message], "-w", "10")

    assert (found["lost"], found["dup"]) == (0, 0)
    assert found["delivered_per_s"] > 100


def test_every_message_that_never_arrives_is_counted(flood: Path) -> None:
    found = run_flow(flood, lambda count, message: [] if count in (7, 8, 20) else [message], "-w", "10")

    assert (found["lost"], found["dup"]) == (3, 0)


def test_a_message_lost_at_the_very_end_is_counted(flood: Path) -> None:
    found = run_flow(flood, lambda count, message: [message] if count <= 50 else [], "-w", "10")

    assert (found["lost"], found["dup"]) == (10, 0)


def test_every_message_that_arrives_again_is_counted(flood: Path) -> None:
    found = run_flow(flood, lambda count, message: [message] * (2 if count in (5, 9) else 1), "-w", "10")

    assert (found["lost"], found["dup"]) == (0, 2)


def test_with_a_rate_latency_counts_from_the_moment_a_message_was_due(flood: Path) -> None:
    def stall_once(count: int, message: bytes) -> list[bytes]:
        if count == 800:
            time.sleep(0.3)
        return [message]

    found = run_flow(flood, stall_once, "-w", "100000", "-r", "1000")

    # Of some 1000 messages, those of 0.3 s were late by up to 0.3 s: far more than the one that was held.
    assert found["p50_ms"] < 100
    assert 150 < found["p99_ms"] < 400


class AcknowledgingBroker:
    """Takes one publisher of QoS 1; `hold_s` says for how long the n-th acknowledgement waits, None that it never comes."""

    def __init__(self, hold_s: Callable[[int], float | None]) -> None:
        self.hold_s = hold_s
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            stream, _ = self.server.accept()
            count = 0
            for first, body, _ in packets(stream):
                if first == 0x10:
                    stream.sendall(b"\x20\x02\x00\x00")
                    continue
                count += 1
                held_s = self.hold_s(count)
                if held_s is not None:
                    time.sleep(held_s)
                    topic_bytes = int.from_bytes(body[:2], "big")
                    stream.sendall(b"\x40\x02" + body[2 + topic_bytes : 4 + topic_bytes])
        except OSError:
            pass  # the generator has left


def run_alone(flood: Path, hold_s: Callable[[int], float | None], *words: str) -> dict[str, float]:
    broker = AcknowledgingBroker(hold_s)
    command = [str(flood), "flow", "-p", str(broker.port), "-m", "alone", "-P", "1", "-q", "1", "-d", "1", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    finally:
        broker.server.close()
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_a_publisher_alone_keeps_its_rate_and_counts_acknowledgements(flood: Path) -> None:
    found = run_alone(flood, lambda _: 0.0, "-w", "1000", "-r", "1000")

    # For half a second before it is measured, and a second then.
    assert found["lost"] == 0
    assert found["sent"] == pytest.approx(1500, rel=0.02)
    assert found["delivered_per_s"] == pytest.approx(1000, rel=0.05)


def test_a_publisher_alone_measures_latency_from_when_a_message_was_due(flood: Path) -> None:
    found = run_alone(flood, lambda count: 0.3 if count == 800 else 0.0, "-w", "100000", "-r", "1000")

    assert found["p50_ms"] < 100
    assert 150 < found["p99_ms"] < 400


def test_a_publisher_alone_counts_unacknowledged_messages(flood: Path) -> None:
    found = run_alone(flood, lambda count: None if count in (7, 8, 20) else 0.0, "-w", "100", "-r", "1000")

    assert found["lost"] == 3


def test_a_run_may_take_longer_than_four_seconds(flood: Path) -> None:
    # 2**32 nanoseconds: five seconds would be 0.7 of them if they were counted in 32 bits.
    began = time.monotonic()
    run_alone(flood, lambda _: 0.0, "-w", "10", "-r", "100", "-d", "5")

    assert time.monotonic() - began > 5


def test_a_broker_that_closes_the_connection_is_an_error_in_words(flood: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        done = subprocess.run(
            [str(flood), "flow", "-p", str(server.getsockname()[1])], capture_output=True, text=True, timeout=30
        )

    assert (done.returncode, done.stderr) == (1, "flood: the broker closed a connection\n")


@pytest.mark.parametrize("name", ["flood", "mqload"])
def test_a_connecting_client_subscribes_only_after_its_connack(name: str, tmp_path: Path) -> None:
    generator = build(tmp_path, name)
    order: list[int] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        stream, _ = server.accept()
        data = stream.recv(65536)
        order.append(len(data) - 2 - data[1])  # bytes behind CONNECT
        stream.sendall(b"\x20\x02\x00\x00")
        order.append(stream.recv(65536)[0])
        stream.sendall(b"\x90\x03\x00\x01\x00")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    command = [str(generator), "connect", "-p", str(server.getsockname()[1]), "-n", "1", "-c", "1"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True)
    thread.join(10)
    server.close()

    assert order == [0, 0x82]
    assert msgspec.json.decode(done.stdout, type=Run).connects_per_s > 0
