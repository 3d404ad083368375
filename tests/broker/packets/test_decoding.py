"""Large packets are decoded in one thread beside the loop, which then does not look at each property again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace

from braidmq.broker.broker import Broker
from braidmq.mqtt import codec
from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.packets import MQTT5, Connack, Connect, Packet, Pingreq, Pingresp, Subscribe, SubscribeOption, Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.text_pairs import TextPairs
from tests.support.simulator.offline_node import with_broker
from tests.support.simulator.peer import Peer

MANY = (("", ""),) * 6000  # 30 KB
LARGE = Will("w", b"", properties=Properties(will_delay_interval=1000, user_properties=MANY))
LARGE_CONNECT = Connect("one", MQTT5, will=LARGE)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread in which each packet was decoded."""
    seen: list[int] = []

    def note(first_byte: int, body: bytes, version: int) -> Packet:
        seen.append(threading.get_ident())
        return decode(first_byte, body, version)

    monkeypatch.setattr(codec, "decode", note)
    return seen


def with_peers(
    data_dir: Path, work: Callable[[Broker, Callable[[], Peer], Callable[[], Awaitable[None]]], Awaitable[None]]
) -> None:
    """Run ``work`` with a broker, a way to make clients, and a way to wait for all that is done for them."""

    async def run(broker: Broker) -> None:
        before = asyncio.all_tasks()

        async def done() -> None:
            await asyncio.gather(*(asyncio.all_tasks() - before))
            await asyncio.sleep(0)  # what is written at the end of the turn

        await work(broker, lambda: Peer(broker, MQTT5, asyncio.get_running_loop()), done)

    with_broker(data_dir, run, recorded=())


def test_a_large_connect_is_decoded_beside_the_loop(tmp_path: Path, threads: list[int]) -> None:
    async def work(broker: Broker, make: Callable[[], Peer], done: Callable[[], Awaitable[None]]) -> None:
        client = make()

        client.send(LARGE_CONNECT, Pingreq())
        was_read = client.is_read
        await done()

        assert [type(packet) for packet in client.take()] == [Connack, Pingresp]
        assert (was_read, client.is_read) == (False, True)
        assert threads
        assert threading.get_ident() not in threads

    with_peers(tmp_path, work)


def test_large_packets_of_all_clients_share_one_thread(tmp_path: Path, threads: list[int]) -> None:
    filters = [SubscribeOption(f"some/filter/{number}", 0) for number in range(2000)]

    async def work(broker: Broker, make: Callable[[], Peer], done: Callable[[], Awaitable[None]]) -> None:
        clients = [make() for _ in range(8)]

        for number, client in enumerate(clients):
            client.send(replace(LARGE_CONNECT, client_id=str(number)), Subscribe(1, filters))
        async with asyncio.timeout(20):
            # The SUBSCRIBEs follow the CONNECTs, and all of them share the turns.
            while len(threads) < 16:  # noqa: ASYNC110  # the decoder is another thread's
                await asyncio.sleep(0)
        await done()

        assert len(threads) == 16
        assert len(set(threads)) == 1

    with_peers(tmp_path, work)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        pytest.param(lambda frame: frame + b"\0", 0x81, id="bytes after the end"),
        pytest.param(lambda frame: frame.replace(b"MQTT\5", b"MQTT\6"), 0x84, id="unknown version"),
    ],
)
def test_a_large_connect_that_is_invalid_is_answered_as_a_small_one_is(
    tmp_path: Path, spoil: Callable[[bytes], bytes], reason: int
) -> None:
    body = spoil(encode(LARGE_CONNECT, MQTT5)[4:])
    size = len(body)
    frame = bytes((0x10, size & 127 | 128, size >> 7 & 127 | 128, size >> 14)) + body

    async def work(broker: Broker, make: Callable[[], Peer], done: Callable[[], Awaitable[None]]) -> None:
        client = make()

        client.connection.feed(frame)
        await done()

        (answer,) = client.take()
        assert isinstance(answer, Connack)
        assert answer.reason == reason
        assert client.is_closed

    with_peers(tmp_path, work)


def test_a_client_that_leaves_while_its_connect_is_decoded_has_no_session(tmp_path: Path) -> None:
    async def work(broker: Broker, make: Callable[[], Peer], done: Callable[[], Awaitable[None]]) -> None:
        client = make()

        client.send(LARGE_CONNECT)
        client.cut()
        await done()

        assert len(broker.sessions) == 0
        assert broker.sessions.will_bytes == 0

    with_peers(tmp_path, work)


async def reason_of(client: Peer) -> int:
    """The reason of the client's CONNACK, once it comes."""
    async with asyncio.timeout(20):
        while not (found := [each.reason for each in client.take() if isinstance(each, Connack)]):  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # the session is written by another thread
    return found[0]


def test_a_will_of_thousands_of_properties_is_never_read_property_by_property(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pairs: TextPairs) -> NoReturn:
        raise AssertionError("read on the loop")

    monkeypatch.setattr(TextPairs, "__iter__", fail)

    async def work(broker: Broker, make: Callable[[], Peer], done: Callable[[], Awaitable[None]]) -> None:
        accepted, refused = make(), make()
        durable = replace(LARGE_CONNECT, properties=Properties(session_expiry_interval=1000))

        accepted.send(durable)
        answers = [await reason_of(accepted)]
        size = broker.sessions.will_bytes
        limits = replace(broker.live.now.limits, held_bytes_max=4 * size)
        broker.reconfigure(replace(broker.live.now, limits=limits))
        refused.send(replace(LARGE_CONNECT, client_id="two"))
        answers.append(await reason_of(refused))
        accepted.cut()
        await done()

        assert answers == [0, 0x97]
        assert 5 * len(MANY) <= size < 5 * len(MANY) + 1000
        assert broker.sessions.will_bytes == size

    with_peers(tmp_path, work)
