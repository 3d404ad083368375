"""Bytes to a TCP client pass the transport by; what the kernel does not take goes through it, and the order holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import uvloop

from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT311, Connect, Pingreq, Publish, Subscribe, SubscribeOption
from braidmq.testing import Broker
from tests.support.certificates import Authority

COUNT = 24_000  # about 8 MiB: more than all buffers of the kernel


def recv_exactly(sock: socket.socket, size: int) -> bytes:
    """That many bytes, however they come."""
    got = bytearray()
    while len(got) < size:
        data = sock.recv(min(size - len(got), 4096))
        assert data, f"closed after {len(got)} of {size} bytes"
        got += data
    return bytes(got)


def join(stack: ExitStack, address: tuple[str, int], client_id: str, authority: Authority | None) -> socket.socket:
    """A connected client with a small window."""
    plain = stack.enter_context(socket.socket())
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    plain.settimeout(30)
    plain.connect(address)
    sock = plain
    if authority is not None:
        sock = stack.enter_context(authority.client_context().wrap_socket(plain, server_hostname="localhost"))
    sock.sendall(encode(Connect(client_id, version=MQTT311, clean_start=True, keep_alive=0), MQTT311))
    assert recv_exactly(sock, 4) == b"\x20\x02\x00\x00"
    return sock


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_a_slow_reader_with_a_small_window_gets_every_byte_in_order(kind: str, authority: Authority) -> None:
    frames = [encode(Publish("t", bytes([65 + number % 26]) * (number % 700), qos=0), MQTT311) for number in range(COUNT)]
    pair = authority.server()
    listener = {"bind": "127.0.0.1:0"} | ({"cert_file": pair.cert_file, "key_file": pair.key_file} if kind == "tls" else {})
    with Broker(listeners={kind: {"default": listener}}, limits={"outbox_bytes_max": "16MiB"}) as broker, ExitStack() as stack:
        reader, publisher = (
            join(stack, (broker.host, broker.ports[f"{kind}:default"]), client_id, authority if kind == "tls" else None)
            for client_id in ("reader", "publisher")
        )
        reader.sendall(encode(Subscribe(1, [SubscribeOption("t", 0)]), MQTT311))
        assert recv_exactly(reader, 5) == b"\x90\x03\x00\x01\x00"

        with ThreadPoolExecutor(1) as other:
            publishing = other.submit(publisher.sendall, b"".join(frames) + encode(Pingreq(), MQTT311))
            received = recv_exactly(reader, sum(map(len, frames)))
            publishing.result()

        assert received == b"".join(frames)
        assert recv_exactly(publisher, 2) == b"\xd0\x00"


class Pausing(asyncio.Protocol):
    """Notes whether the transport wants no more."""

    is_paused = False

    def pause_writing(self) -> None:
        self.is_paused = True


@pytest.mark.parametrize("policy", [asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy])
def test_a_transport_without_a_buffer_pauses_writing_from_the_first_byte(policy: type[asyncio.AbstractEventLoopPolicy]) -> None:
    """What direct writes rest on: while a transport holds anything, the connection knows."""

    async def fill() -> bool:
        ours, theirs = socket.socketpair()
        with theirs:
            transport, protocol = await asyncio.get_running_loop().create_connection(Pausing, sock=ours)
            transport.set_write_buffer_limits(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(transport.get_extra_info("socket").fileno(), bytes(4096))
            transport.write(b"x")
            transport.abort()
            return protocol.is_paused

    loop = policy().new_event_loop()
    try:
        assert loop.run_until_complete(fill())
    finally:
        loop.close()
