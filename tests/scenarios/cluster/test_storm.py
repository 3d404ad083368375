"""All clients come back at once after a core and its worker were killed: all are admitted, with their sessions."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Connect, Packet, Subscribe, SubscribeOption
from braidmq.mqtt.properties import Properties
from tests.durability.campaigns.node import write_config
from tests.support.ports import free_port
from tests.support.started import Started

CLIENTS = 600
PATIENCE_S = 60.0
CONNACK, SUBACK = 0x20, 0x90


class Device(NamedTuple):
    """A connected client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    has_session: bool


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, packet: Packet, kind: int) -> bytes:
    """Send a packet; the body of its answer."""
    writer.write(encode(packet, MQTT5))
    head = await reader.readexactly(2)
    assert head[0] == kind
    return await reader.readexactly(head[1])


async def connect(port: int, number: int) -> Device:
    """A durable session; tries again until somebody listens."""
    packet = Connect(f"d{number}", MQTT5, False, 0, None, None, None, properties=Properties(session_expiry_interval=1000))
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            connack = await ask(reader, writer, packet, CONNACK)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)  # as a client does
            continue
        assert connack[1] == 0, f"refused with 0x{connack[1]:02X}"
        return Device(reader, writer, has_session=bool(connack[0]))


async def subscribe(device: Device, number: int) -> None:
    suback = await ask(device.reader, device.writer, Subscribe(1, [SubscribeOption(f"to/{number}", 1)]), SUBACK)
    assert suback[-1] == 1


async def come_back(port: int, first: Started, file: Path, options: tuple[str, ...]) -> list[Device]:
    """All clients, once they have lost their connections at the same moment and have new ones."""
    devices = await asyncio.gather(*(connect(port, number) for number in range(CLIENTS)))
    await asyncio.gather(*(subscribe(device, number) for number, device in enumerate(devices)))
    first.send(signal.SIGKILL)
    await asyncio.gather(*(device.reader.read() for device in devices), return_exceptions=True)
    again = [asyncio.ensure_future(connect(port, number)) for number in range(CLIENTS)]
    with Started(file, options=options):
        return await asyncio.gather(*again)


@pytest.mark.timeout(180)
@pytest.mark.row("F13")
def test_all_clients_are_back_after_a_core_and_its_worker_were_killed(tmp_path: Path) -> None:
    port = free_port()
    file = write_config(tmp_path, listeners={"tcp": {"default": {"bind": f"127.0.0.1:{port}"}}})
    options = ("--workers", "1", "--no-core-listeners")

    async def storm() -> list[Device]:
        async with asyncio.timeout(PATIENCE_S):
            with Started(file, options=options) as node:
                return await come_back(port, node, file, options)

    devices = asyncio.run(storm())

    assert [device.has_session for device in devices] == [True] * CLIENTS
