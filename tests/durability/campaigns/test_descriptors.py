"""Strangers who open connections until the process has no file descriptors left: the log keeps its own."""

from __future__ import annotations

import contextlib
import random
import re
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.access import hashes, passwords
from braidmq.flight import connect
from braidmq.mqtt.packets import Puback, Publish
from braidmq.mqtt.reasons import Reason
from tests.durability.campaigns.node import client, read_log, stop, write_config
from tests.support.clients.wire import Closed, Wire
from tests.support.ports import free_port
from tests.support.stage import wait_until
from tests.support.started import Started

FILES_MAX = 300
STRANGERS = 350
# More than the memtables of a family hold, so that the engine has to open a table file.
LARGE_BYTES = 800_000
LARGE_COUNT = 60
DEADLINE_S = 20.0

LIMITED = [
    sys.executable,
    "-c",
    f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES_MAX}, {FILES_MAX})); "
    "from braidmq.cli.main import main; main()",
]


@contextlib.contextmanager
def crowd(port: int, count: int = STRANGERS) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing; those that were refused are among them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > count + 100, "this process has too few descriptors for the attack"
    with contextlib.ExitStack() as stack:
        strangers = []
        for _ in range(count):
            stranger = stack.enter_context(socket.socket())
            stranger.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                stranger.connect(("127.0.0.1", port))
            strangers.append(stranger)
        yield strangers


def await_refusals(strangers: list[socket.socket], count: int) -> None:
    """Wait until so many of them were hung up on."""
    poll = select.poll()
    for each in strangers:
        poll.register(each, select.POLLRDHUP)
    gone: set[int] = set()
    while len(gone) < count:
        events = poll.poll(10_000)
        assert events, f"only {len(gone)} of {len(strangers)} were refused"
        for number, _ in events:
            gone.add(number)
            poll.unregister(number)


@pytest.fixture
def api_port() -> int:
    """A port that nothing listens on."""
    return free_port()


@pytest.fixture
def file(tmp_path: Path, api_port: int) -> Path:
    users = tmp_path / "users"
    passwords.set_password(str(users), "alice", hashes.make(b"secret"), None)
    return write_config(
        tmp_path,
        access={"password_file": str(users)},
        listeners={"tcp": {"default": {"bind": "127.0.0.1:0", "allow_anonymous": False}}},
        api={"bind": f"127.0.0.1:{api_port}"},
        limits={"connect_timeout": "60s"},
    )


def alice(port: int) -> Wire:
    return client(port, user_name="alice", password=b"secret")


def come_back(port: int) -> Wire:
    """A client that tries until the node has seen that the strangers have left."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return alice(port)
        except Closed:
            assert time.monotonic() < deadline


def publish_large(wire: Wire, noise: random.Random) -> None:
    """Publish more than a memtable, a few at a time; each must be acknowledged."""
    for number in range(1, LARGE_COUNT + 1):
        wire.send(Publish("large", noise.randbytes(LARGE_BYTES), 1, packet_id=number))
        assert wire.receive(Puback).reason < 0x80


METRIC = {
    "tcp:default": "connections_refused_open_files",
    "api": "api_connections_refused",
    "history": "history_service_connections_refused",
}


def await_refused(data_dir: Path, metric: str) -> None:
    """Wait until the node has told of those that it has refused; the history service tells it every second."""
    wait_until(lambda: figure(data_dir, metric) >= STRANGERS - FILES_MAX, f"{metric} counts the strangers", DEADLINE_S)


def figure(data_dir: Path, metric: str) -> int:
    """A figure of the node, asked for at the control socket, which has descriptors of its own."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(data_dir / "ctl.sock"))
        return ask(asking, metric)


def ask(asking: socket.socket, metric: str) -> int:
    """Ask for a figure over an open connection to the control socket, which the node then closes."""
    asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
    with asking.makefile() as answer:
        return round(float(re.search(rf"^braidmq_{metric} (\S+)$", answer.read(), re.M)[1]))  # type: ignore[index]


@pytest.mark.row("D10")
@pytest.mark.parametrize("door", ["tcp:default", "api", "history"])
def test_unauthenticated_connections_leave_the_log_the_descriptors_it_needs(file: Path, api_port: int, door: str) -> None:
    noise = random.Random(11)
    variables = {"BRAIDMQ_HISTORY__BIND": "127.0.0.1:0"} if door == "history" else {}
    with Started(file, variables, command=LIMITED) as node:
        ports = {"tcp:default": node.await_port(), "api": api_port}
        if door == "history":
            ports[door] = int(node.await_line(r"history listens on 127\.0\.0\.1:(\d+)")[1])
        established = alice(ports["tcp:default"])
        assert established.publish("t", b"before", 1) < 0x80

        with crowd(ports[door]) as strangers:
            await_refusals(strangers, STRANGERS - FILES_MAX)
            publish_large(established, noise)
            assert established.publish("t", b"meanwhile", 1) < 0x80
            if door == "history":
                with connect(f"127.0.0.1:{ports[door]}", user="alice", password="secret") as reader:
                    assert reader.read(["t"]).read_all()["payload"].to_pylist() == [b"before", b"meanwhile"]
            await_refused(file.parent / "data", METRIC[door])

        assert come_back(ports["tcp:default"]).publish("t", b"after", 1) < 0x80
        stop(node)
    assert [record.payload for record in read_log(file, "t")] == [b"before", b"meanwhile", b"after"]


@pytest.mark.row("D10")
def test_connections_beyond_the_share_of_the_control_socket_are_refused_and_counted(file: Path) -> None:
    data_dir = file.parent / "data"
    with Started(file, command=LIMITED) as node, contextlib.ExitStack() as stack:
        wire = alice(node.await_port())
        places = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]
        for each in places:
            each.connect(str(data_dir / "ctl.sock"))
            each.settimeout(DEADLINE_S)

        assert [each.recv(1) for each in places[16:]] == [b""] * 4

        assert wire.publish("t", b"meanwhile", 1) < 0x80
        assert ask(places[0], "control_connections_refused") == 4


@pytest.mark.row("D10")
def test_a_log_without_descriptors_recovers_when_descriptors_are_free_again(file: Path) -> None:
    noise = random.Random(12)
    with Started(file, {"BRAIDMQ_HISTORY__BIND": "127.0.0.1:0"}, command=LIMITED) as node:
        wire = alice(node.await_port())
        history_port = int(node.await_line(r"history listens on 127\.0\.0\.1:(\d+)")[1])
        assert wire.publish("t", b"before", 1) < 0x80
        # Whatever takes them, such as a hook of the operator's: nothing more can be opened.
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (3, FILES_MAX))
        assert publish_until_refused(wire, noise) == Reason.QUOTA_EXCEEDED
        node.await_line("ALARM: the log accepts no messages.*Too many open files")

        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
        node.await_line("was reopened after a fault and accepts writes")
        node.await_line("the log accepts messages again")

        assert wire.publish("t", b"after", 1) < 0x80
        assert figure(file.parent / "data", "history_recoveries") == 1
        # Whoever reads the log from another process goes on, too.
        with connect(f"127.0.0.1:{history_port}", user="alice", password="secret") as reader:
            assert reader.read(["t"]).read_all()["payload"].to_pylist() == [b"before", b"after"]
        node.send(signal.SIGTERM)
        assert node.await_end() == 0
    assert [record.payload for record in read_log(file, "t")] == [b"before", b"after"]


def publish_until_refused(wire: Wire, noise: random.Random) -> int:
    for number in range(1, 10 * LARGE_COUNT):
        wire.send(Publish("large", noise.randbytes(LARGE_BYTES), 1, packet_id=number))
        answer = wire.receive(Puback).reason
        if answer >= 0x80:
            return answer
    raise AssertionError("nothing was refused")
