"""Sends frames from one process to another over one connection, and prints MB/s and CPU time per frame of either process."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import uvloop

from benchmarks.net import __doc__ as title
from braidmq.base.config.addresses import Address
from braidmq.net.acceptor import Acceptor
from braidmq.net.connection import PeerConnection
from braidmq.net.dialer import Dialer
from braidmq.net.frames import FrameKind
from braidmq.net.handshake import hello
from braidmq.net.proto_v1 import Hello

SECRET = b"benchmark"


def welcome(peer: Hello) -> None:
    """Accept every node."""
    return None


async def receive(path: Path, over_tcp: bool, ready: Connection, count: int) -> None:
    """Count frames, and report the CPU time that they took."""
    done = asyncio.Event()
    seen = 0
    begun_s = 0.0

    def on_peer(peer: PeerConnection) -> None:
        def on_frame(kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
            nonlocal seen, begun_s
            if not seen:
                begun_s = process_time()
            seen += 1
            if seen == count:
                peer.send(FrameKind.ANSWER, 0, b"")
                done.set()

        peer.on_frame = on_frame

    acceptor = Acceptor(
        hello("braid", "core", "core", 1, "messages", 4),
        SECRET,
        on_peer=on_peer,
        check=welcome,
        path=None if over_tcp else path,
        bind="127.0.0.1:0" if over_tcp else "",
    )
    await acceptor.start()
    ready.send(tuple(acceptor.addresses[0]) if over_tcp else None)
    await done.wait()
    ready.send(process_time() - begun_s)
    await acceptor.close()


async def send(address: Path | Address, count: int, body: bytes) -> tuple[float, float]:
    """Send the frames; seconds and CPU seconds until the last one was received."""
    up: asyncio.Queue[PeerConnection] = asyncio.Queue()
    room, answered = asyncio.Event(), asyncio.Event()

    def on_up(connection: PeerConnection) -> None:
        connection.on_room = room.set
        connection.on_frame = lambda *frame: answered.set()
        up.put_nowait(connection)

    edge = hello("braid", "edge", "replicant", 1, "messages", 4)
    dialer = Dialer(address, lambda: edge, SECRET, on_up=on_up, on_down=lambda reason: None, check=welcome)
    dialer.start()
    connection = await up.get()
    begun, begun_cpu = perf_counter(), process_time()
    for number in range(count):
        connection.send(FrameKind.FEED, number, body)
        if connection.is_clogged:
            room.clear()
            await room.wait()
    await answered.wait()
    took = perf_counter() - begun, process_time() - begun_cpu
    await dialer.close()
    return took


def receiver(path: Path, over_tcp: bool, ready: Connection, count: int) -> None:
    """The process that receives."""
    uvloop.run(receive(path, over_tcp, ready, count))


def answer_of(process: Connection) -> Any:
    """What the other process says; it has a minute for it."""
    if not process.poll(60):
        raise TimeoutError("the receiving process does not answer")
    return process.recv()


def measure(size: int, count: int, over_tcp: bool) -> None:
    """Measure frames of one size, and print a line."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "s"
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=receiver, args=(path, over_tcp, theirs, count))
        process.start()
        bound = answer_of(ours)
        took_s, sending_s = uvloop.run(send(Address(*bound) if over_tcp else path, count, b"x" * size))
        receiving_s = answer_of(ours)
        process.join()
    sending, receiving = sending_s / count * 1e6, receiving_s / count * 1e6
    print(f"{'TCP' if over_tcp else 'Unix':<5}{size:>8} bytes {count / took_s:>9.0f} frames/s", end="")
    print(f"{size * count / took_s / 1e6:>7.0f} MB/s   CPU per frame: {sending:.1f} us sending, {receiving:.1f} us receiving")


def main() -> None:
    """Measure some sizes over both kinds of sockets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.net", description=title)
    parser.add_argument("--megabytes", type=int, default=1000, help="for each line (default: 1000, at most 200000 frames)")
    bytes_in_all = parser.parse_args().megabytes * 1_000_000
    for over_tcp in (False, True):
        for size in (100, 4096, 64 * 1024, 1_000_000):
            measure(size, min(bytes_in_all // size, 200_000), over_tcp)
