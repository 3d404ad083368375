"""A process that is stopped and continued: what clients did during the pause counts as in time."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.mqtt.packets import Connack, Pingreq, Pingresp, Will
from braidmq.mqtt.properties import NO_PROPERTIES, Properties
from tests.support.clients.wire import Wire, unique
from tests.support.started import Started

pytestmark = pytest.mark.timeout(60)

KEEP_ALIVE_S = 1  # so silence of two seconds is one too many
PAUSE_S = 3.0
LONG_PAUSE_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Started]:
    """A node of its own, that can be stopped."""
    file = tmp_path / "node.toml"
    file.write_text(
        f'[node]\ndata_dir = "{tmp_path / "data"}"\n[api]\nbind = ""\n[listeners.tcp.default]\nbind = "127.0.0.1:0"\n'
    )
    with Started(file) as started:
        yield started


def ping_through_a_pause(node: Started, clients: list[Wire]) -> None:
    """Stop the node while these clients go on pinging, and let it go on."""
    node.pause()
    end = time.monotonic() + PAUSE_S
    while time.monotonic() < end:
        for client in clients:
            client.send(Pingreq())
        time.sleep(0.5)  # the time that passes is what is tested
    node.send(signal.SIGCONT)


def has_will(topic: str, delay_s: int = 0) -> Will:
    """A will on this topic."""
    return Will(topic, b"gone", 0, False, Properties(will_delay_interval=delay_s) if delay_s else NO_PROPERTIES)


@pytest.mark.row(59)
def test_clients_that_pinged_while_the_process_was_stopped_stay_connected(node: Started) -> None:
    topic = unique("wills/")
    port = node.await_port()
    watcher = Wire("127.0.0.1", port).connect(keep_alive=0)
    watcher.subscribe(topic)
    clients = [Wire("127.0.0.1", port).connect(keep_alive=KEEP_ALIVE_S, will=has_will(topic)) for _ in range(5)]
    silent = Wire("127.0.0.1", port).connect(keep_alive=KEEP_ALIVE_S, will=has_will(f"{topic}/silent"))
    watcher.subscribe(f"{topic}/silent")

    ping_through_a_pause(node, clients)

    node.await_line(r"the node did not run for \d\.\d s")
    for client in clients:
        client.send(Pingreq())
        client.receive(Pingresp)
    while not watcher.has_news(0.2):  # the one that is really gone is found, later
        for client in clients:
            client.send(Pingreq())
    assert watcher.receive_publish().topic == f"{topic}/silent"
    silent.close()
    for client in clients:
        client.drain()


@pytest.mark.row(59)
def test_a_client_that_reconnects_during_a_pause_keeps_its_session_and_delayed_will(node: Started) -> None:
    topic = unique("wills/")
    port = node.await_port()
    watcher = Wire("127.0.0.1", port).connect(keep_alive=0)
    watcher.subscribe(topic)
    lost = Wire("127.0.0.1", port).connect(persistent=True, session_expiry_interval=2, will=has_will(topic, delay_s=1))
    lost.subscribe("news", qos=1)
    lost.close()
    watcher.ping()

    node.pause()
    back = Wire("127.0.0.1", port)  # the kernel takes the connection, and keeps it for the node
    back.send_request(client_id=lost.client_id, persistent=True, session_expiry_interval=2)
    time.sleep(PAUSE_S)  # both deadlines pass
    node.send(signal.SIGCONT)

    assert back.receive(Connack).session_present
    watcher.expect_silence()


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.row(59)
def test_a_pause_of_a_minute_closes_no_connection_and_publishes_no_will(node: Started) -> None:
    topic = unique("wills/")
    port = node.await_port()
    watcher = Wire("127.0.0.1", port).connect(keep_alive=0)
    watcher.subscribe(f"{topic}/#")
    staying = [Wire("127.0.0.1", port).connect(keep_alive=4, will=has_will(f"{topic}/staying")) for _ in range(20)]
    moving = [
        Wire("127.0.0.1", port).connect(persistent=True, session_expiry_interval=20, keep_alive=4, will=has_will(topic, 10))
        for _ in range(20)
    ]
    for client in moving:
        client.subscribe("news", qos=1)

    node.pause()
    began = time.monotonic()
    back: list[Wire] = []
    while (elapsed := time.monotonic() - began) < LONG_PAUSE_S:
        for client in staying:
            client.send(Pingreq())
        if len(back) < len(moving) * elapsed / LONG_PAUSE_S:  # one after the other, some just before the end
            moving[len(back)].close()
            back.append(Wire("127.0.0.1", port))
            back[-1].send_request(client_id=moving[len(back) - 1].client_id, persistent=True, session_expiry_interval=20)
        time.sleep(0.5)  # the time that passes is what is tested
    node.send(signal.SIGCONT)

    node.await_line(r"the node did not run for \d+\.\d s")
    assert all(client.receive(Connack).session_present for client in back)
    for client in moving[len(back) :]:
        client.ping()
    for client in staying:
        client.drain()
        client.ping()
    watcher.publish("news", b"again", 1)
    for client in (*back, *moving[len(back) :]):
        assert client.receive_publish().topic == "news"
    watcher.expect_silence()
