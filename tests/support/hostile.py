"""Clients that want to hurt: each attack that a node was once weak against, over and over, all of them at once.

``attack`` forks a process of its own at the lowest priority, so that what it costs the node is the node's to bear and not the
scheduler's, and gives the number of strikes that each attack has completed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from multiprocessing.connection import Connection

from braidmq.mqtt.packets import MQTT5, MQTT311
from tests.support.clients import raw
from tests.support.clients.wire import unique

MIB = 1024 * 1024
_TIMEOUT_S = 10.0
_HOLD_S = 2.0  # for which all connections are taken, and then for as long none of them
_EXPIRY = b"\x11\x00\x00\x00\x1e"  # a session that outlives its connection by 30 s
_WINDOW = b"\x21\xff\xff"  # takes as many messages in flight as there may be
_DEEP = "/".join(["d"] * 126)


class Attacker:
    """One attack. ``strike`` is one round of it; whatever the node does to the connection is the node's right."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.completed = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        """Strike until it is over; a strike that the node has cut short does not count."""
        while not self.is_over.is_set():
            with contextlib.suppress(OSError):
                self.strike()
                self.completed += 1
            self.is_over.wait(0.2)

    def strike(self) -> None:
        """Do it once."""
        raise NotImplementedError

    def open(
        self, *packets: bytes, version: int = MQTT5, props: bytes = b"", flags: int = 0x02, rest: bytes = b""
    ) -> socket.socket:
        """A connection that has sent CONNECT and these packets, and has its CONNACK; waits while all connections are taken."""
        until = time.monotonic() + _TIMEOUT_S
        while True:
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=_TIMEOUT_S)
            try:
                connection.sendall(raw.connect(version, client_id=unique("bad"), props=props, flags=flags, rest=rest))
                if connection.recv(4096):
                    break
            except ConnectionError:
                pass
            connection.close()
            if time.monotonic() > until or self.is_over.wait(0.1):
                raise ConnectionError("not let in")
        for packet in packets:
            connection.sendall(packet)
        return connection

    def stay(self, *connections: socket.socket, seconds: float) -> None:
        """Read and throw away what comes, for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.is_over.is_set():
            for connection in connections:
                connection.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    connection.recv(MIB)


class Squatter(Attacker):
    """Takes every connection there is and says nothing; in between it leaves room, so that the other attacks take place."""

    def strike(self) -> None:
        taken: list[socket.socket] = []
        self.is_over.wait(_HOLD_S)
        try:
            with contextlib.suppress(OSError):
                for _ in range(900):
                    taken.append(socket.create_connection(("127.0.0.1", self.port), timeout=1))
            self.is_over.wait(_HOLD_S)
        finally:
            for connection in taken:
                connection.close()


class Sharer(Attacker):
    """Joins thousands of shared groups with one filter, and publishes a byte to all of them."""

    def strike(self) -> None:
        members = [
            self.open(
                *(raw.subscribe(MQTT5, *((f"$share/g{client}x{block}x{i}/t/#", 1) for i in range(500))) for block in range(20)),
                props=_WINDOW,
            )
            for client in range(4)
        ]
        publisher = self.open(*(raw.publish(MQTT5, "t/x", b"x", flags=2, packet_id=1 + i) for i in range(5)))
        self.stay(*members, publisher, seconds=5)
        for connection in (*members, publisher):
            connection.close()


class Hoarder(Attacker):
    """Replays large messages under ever new names, acknowledges nothing, and leaves its session behind."""

    def strike(self) -> None:
        payload = os.urandom(MIB - 1024)
        publisher = self.open(*(raw.publish(MQTT5, f"big/{i}", payload, flags=2, packet_id=1 + i) for i in range(17)))
        self.stay(publisher, seconds=0.5)
        publisher.close()
        for _ in range(10):
            reader = self.open(raw.subscribe(MQTT5, ("$replay/earliest/big/#", 1)), props=_EXPIRY + _WINDOW)
            self.stay(reader, seconds=0.3)
            reader.close()


class Delayer(Attacker):
    """Publishes large messages for later, and large ones to be kept."""

    def strike(self) -> None:
        payload = os.urandom(MIB - 1024)
        publisher = self.open()
        for i in range(30):
            publisher.sendall(raw.publish(MQTT5, f"$delayed/3600/later/{i}", payload, flags=2, packet_id=1 + i))
            publisher.sendall(raw.publish(MQTT5, f"kept/{unique()}", payload, flags=3, packet_id=1001 + i))
        self.stay(publisher, seconds=1)
        publisher.close()


class Replayer(Attacker):
    """Opens hundreds of shared replays at once and reads them fast."""

    def strike(self) -> None:
        name = unique()
        filters = [(f"$share/{name}x{i}/$replay/earliest/#", 1) for i in range(300)]
        reader = self.open(raw.subscribe(MQTT5, *filters), props=_WINDOW)
        self.stay(reader, seconds=3)
        reader.close()


class Digger(Attacker):
    """Subscribes to thousands of filters of a hundred levels."""

    def strike(self) -> None:
        packets = (raw.subscribe(MQTT311, *((f"{block}x{i}/{_DEEP}/+", 0) for i in range(100))) for block in range(100))
        digger = self.open(*packets, version=MQTT311)
        self.stay(digger, seconds=3)
        digger.close()


class Testator(Attacker):
    """Leaves sessions behind whose wills have thousands of empty user properties, or a long content type."""

    def strike(self) -> None:
        for props in (b"\x26\x00\x00\x00\x00" * 12_000, b"\x03" + raw.text("x" * 60_000)):
            for _ in range(20):
                rest = raw.will(MQTT5, "w", b"", b"\x18\x00\x00\x00\x1e" + props)
                self.open(props=_EXPIRY, flags=0x06, rest=rest).close()


class Namer(Attacker):
    """Joins shared groups with names of 60 KB, more than a client may have."""

    def strike(self) -> None:
        packets = (raw.subscribe(MQTT5, (f"$share/{i}{'g' * 60_000}/t", 1)) for i in range(100))
        namer = self.open(*packets)
        self.stay(namer, seconds=3)
        namer.close()


class Aliaser(Attacker):
    """Sets aliases for topics of 64 KB on many connections."""

    def strike(self) -> None:
        topic = "t" * 65_000
        connections = [self.open() for _ in range(20)]
        with contextlib.suppress(ConnectionError):  # the second one ends it
            for alias in range(1, 65):
                for connection in connections:
                    connection.sendall(raw.publish(MQTT5, topic, props=b"\x23" + raw.u16(alias)))
        self.is_over.wait(1)
        for connection in connections:
            connection.close()


ATTACKS: tuple[Callable[[int], Attacker], ...] = (
    Squatter, Sharer, Hoarder, Delayer, Replayer, Digger, Testator, Namer, Aliaser,
)  # fmt: skip
SPEAKING = 60  # connections of all of them at a time that have sent a CONNECT, at most


def _run(port: int, seconds: float, result: Connection, chosen: Collection[str]) -> None:
    os.nice(19)
    attackers = [attacker for each in ATTACKS if type(attacker := each(port)).__name__ in chosen or not chosen]
    threads = [threading.Thread(target=attacker.run, daemon=True) for attacker in attackers]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    for attacker in attackers:
        attacker.is_over.set()
    for thread in threads:
        thread.join(_TIMEOUT_S)
    result.send({type(attacker).__name__: attacker.completed for attacker in attackers})


@contextlib.contextmanager
def attack(port: int, seconds: float, chosen: Collection[str] = ()) -> Iterator[Callable[[], dict[str, int]]]:
    """Run every attack for so long beside the block, or those with these names, each in a thread of one process; the yielded call
    waits for their end, and gives the strikes that each has completed.
    """
    forking = multiprocessing.get_context("fork")
    receiving, sending = forking.Pipe(duplex=False)
    process = forking.Process(target=_run, args=(port, seconds, sending, chosen), daemon=True)
    process.start()

    def completed() -> dict[str, int]:
        process.join(seconds + 3 * _TIMEOUT_S)
        assert receiving.poll(), "the attackers did not come to an end"
        found: dict[str, int] = receiving.recv()
        return found

    try:
        yield completed
    finally:
        process.kill()
        process.join()
