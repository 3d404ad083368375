"""``python -m benchmarks.cluster.bare one|two DIRECTORY``: acknowledges QoS 1 after an fdatasync, and does nothing else.

As *one* process it is what any broker with a loop and a commit thread does at least. As *two*, one of them has the clients and
the other one the file, with a socket between them, as a worker and its core: the difference is what the second process costs by
itself, on a machine whose processors the generator shares. It speaks as much MQTT as ``flood``, and says its port in JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final, cast

import uvloop

from braidmq.storage.engine.committer import SWITCH_INTERVAL_S

_FILE_BYTES: Final = 64 * 1024 * 1024
_HEAD: Final = Struct(">II")  # length of the body, number of the turn
_CONNACK: Final = b"\x20\x02\x00\x00"

Acks = list[tuple[asyncio.Transport, bytes]]


class Disk:
    """A file, synced by a thread as often as it can; ``on_synced(tokens)`` for what was written before."""

    def __init__(self, path: Path, on_synced: Callable[[list[int]], None]) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(self._file, 0, 2 * _FILE_BYTES)
        self._at = 0
        self._on_synced = on_synced
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._written = self._synced = 0
        self._waiting: list[tuple[int, int]] = []  # number of the write, token
        threading.Thread(target=self._sync, daemon=True).start()

    def write(self, data: bytes, tokens: list[int]) -> None:
        """Write, and sync soon."""
        os.pwrite(self._file, data, self._at)
        self._at = (self._at + len(data)) % _FILE_BYTES
        with self._changed:
            self._written += 1
            self._changed.notify()
        self._waiting += ((self._written, token) for token in tokens)

    def _sync(self) -> None:
        while True:
            with self._changed:
                while self._written == self._synced:
                    self._changed.wait()
                number = self._written
            os.fdatasync(self._file)
            self._synced = number
            self._loop.call_soon_threadsafe(self._tell, number)

    def _tell(self, number: int) -> None:
        count = sum(written <= number for written, _ in self._waiting)
        done, self._waiting = self._waiting[:count], self._waiting[count:]
        self._on_synced([token for _, token in done])


class Clients:
    """Collects what a turn of the loop reads, and acknowledges it when told."""

    def __init__(self, on_turn: Callable[[bytes, int], None]) -> None:
        self._on_turn = on_turn
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._data: list[bytes] = []
        self._acks: Acks = []
        self._turns: dict[int, Acks] = {}
        self._count = 0

    def receive(self, transport: asyncio.Transport, data: bytes) -> None:
        """Whole packets: ``flood`` sends small ones in one piece."""
        at, acks = 0, bytearray()
        while at < len(data):
            size, body = data[at + 1], at + 2
            if size & 0x80:
                size, body = (size & 0x7F) | data[body] << 7, body + 1
            if data[at] >> 4 == 1:
                transport.write(_CONNACK)
            elif data[at] >> 4 == 3:
                packet_id = body + 2 + (data[body] << 8 | data[body + 1])
                acks += b"\x40\x02" + data[packet_id : packet_id + 2]
            at = body + size
        if acks:
            self._data.append(data)
            self._acks.append((transport, bytes(acks)))
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_due = False
        self._count += 1
        self._turns[self._count], self._acks = self._acks, []
        data, self._data = b"".join(self._data), []
        self._on_turn(data, self._count)

    def acknowledge(self, turns: list[int]) -> None:
        """What these turns have read is on disk."""
        for turn in turns:
            for transport, acks in self._turns.pop(turn):
                transport.write(acks)

    async def listen(self) -> None:
        """Serve clients, and say where."""
        server = await self._loop.create_server(lambda: _Client(self), "127.0.0.1", 0)
        print(json.dumps({"mqtt": server.sockets[0].getsockname()[1]}), flush=True)
        await server.serve_forever()


class _Client(asyncio.Protocol):
    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._clients.receive(self._transport, data)


class _Frames(asyncio.Protocol):
    """Hands out the frames of a read together."""

    def __init__(self, on_frames: Callable[[bytes, list[int]], None]) -> None:
        self._on_frames = on_frames
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at, turns, bodies = 0, [], []
        while len(data) - at >= _HEAD.size:
            size, turn = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + size
            if end > len(data):
                break
            turns.append(turn)
            bodies.append(data[at + _HEAD.size : end])
            at = end
        self._rest = data[at:]
        if turns:
            self._on_frames(b"".join(bodies), turns)


async def _serve_alone(path: Path) -> None:
    clients = Clients(lambda data, turn: disk.write(data, [turn]))
    disk = Disk(path, clients.acknowledge)
    await clients.listen()


async def _serve_file(path: Path, worker: socket.socket) -> None:
    def answer(turns: list[int]) -> None:
        transport.write(b"".join(_HEAD.pack(0, turn) for turn in turns))

    disk = Disk(path, answer)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: _Frames(disk.write), sock=worker)
    await asyncio.Event().wait()


async def _serve_clients(core: socket.socket) -> None:
    def send(data: bytes, turn: int) -> None:
        transport.write(_HEAD.pack(len(data), turn) + data)

    clients = Clients(send)
    frames = _Frames(lambda _, turns: clients.acknowledge(turns))
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: frames, sock=core)
    await clients.listen()


def main() -> None:
    """Serve until the process is ended."""
    kind, path = sys.argv[1], Path(sys.argv[2]) / "bare"
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if kind == "one":
        uvloop.run(_serve_alone(path))
        return
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    if os.fork():
        there.close()
        uvloop.run(_serve_clients(here))
    else:
        here.close()
        uvloop.run(_serve_file(path, there))


if __name__ == "__main__":
    main()
