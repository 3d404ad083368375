"""The load generator for sessions and replay tells the truth: what is lost or repeated on the way is seen."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.measure import build
from tests.benchmarks.packet_stream import packets

pytestmark = pytest.mark.needs("gcc")

MESSAGES = 8
TOPICS = 3
CLIENTS = 7

Deliver = Callable[[list[bytes]], list[bytes]]


@pytest.fixture(scope="module")
def keep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("keep"), "keep")


class FakeBroker:
    """Keeps sessions and messages; ``deliver`` says what becomes of those that a session finds when it is back."""

    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self.lock = threading.Lock()
        self.topic_of: dict[bytes, bytes] = {}
        self.messages: dict[bytes, list[bytes]] = defaultdict(list)
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
        client = b""
        try:
            for first, body, whole in packets(stream):
                with self.lock:
                    if first == 0x10:
                        client = body[12:]
                        stream.sendall(b"\x20\x02\x00\x00")
                        if client in self.topic_of:
                            stream.sendall(b"".join(self.deliver(self.messages[self.topic_of[client]])))
                    elif first == 0x82:
                        self.topic_of[client] = body[4:-1]
                        stream.sendall(b"\x90\x03\x00\x01\x01")
                    elif first == 0x32:
                        name = body[2 : 2 + body[1]]
                        self.messages[name].append(whole)
                        stream.sendall(b"\x40\x02" + body[2 + len(name) : 4 + len(name)])
        except OSError:
            pass  # the generator has left


def resume(keep: Path, deliver: Deliver) -> dict[str, float]:
    broker = FakeBroker(deliver)
    words = ["resume", "-p", str(broker.port), "-n", str(CLIENTS), "-g", str(TOPICS), "-k", str(MESSAGES), "-P", "2", "-d", "1"]
    try:
        done = subprocess.run([str(keep), *words], input="go\n", capture_output=True, text=True, timeout=90, check=True)
    finally:
        broker.server.close()
    assert [len(each) for each in broker.messages.values()] == [MESSAGES] * TOPICS
    found: dict[str, float] = json.loads(done.stdout.splitlines()[1])
    return found


def test_a_session_that_receives_everything_counts_as_complete(keep: Path) -> None:
    found = resume(keep, lambda messages: messages)

    assert (found["lost"], found["dup"]) == (0, 0)


@pytest.mark.parametrize("lost", [[0], [3, 4], [MESSAGES - 1]], ids=["first", "middle", "last"])
def test_every_message_that_a_session_never_gets_is_counted(keep: Path, lost: list[int]) -> None:
    found = resume(keep, lambda messages: [each for place, each in enumerate(messages) if place not in lost])

    assert (found["lost"], found["dup"]) == (len(lost) * CLIENTS, 0)


def test_every_message_that_a_session_gets_again_is_counted(keep: Path) -> None:
    found = resume(keep, lambda messages: [*messages, messages[2], messages[5]])

    assert (found["lost"], found["dup"]) == (0, 2 * CLIENTS)


def test_a_replay_counts_what_comes_until_it_is_enough(keep: Path) -> None:
    message = b"\x30\x05\x00\x01txy"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            stream, _ = server.accept()
            for first, _, _ in packets(stream):
                stream.sendall(b"\x20\x02\x00\x00" if first == 0x10 else b"\x90\x03\x00\x01\x00" + message * 20)

        threading.Thread(target=serve, daemon=True).start()
        words = ["replay", "-p", str(server.getsockname()[1]), "-f", "$replay/earliest/t", "-n", "15"]
        done = subprocess.run([str(keep), *words], capture_output=True, text=True, timeout=30, check=True)

    assert 15 <= json.loads(done.stdout)["received"] <= 20
