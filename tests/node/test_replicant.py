"""A replicant and its core, each composed as in production, in one process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from braidmq.base.config import sources
from braidmq.base.listening.sockets import PortSharing, open_sockets
from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
from braidmq.control.contract import TOKEN_NAME
from braidmq.mqtt.packets import Puback, Publish, Will
from braidmq.node import Node, Replicant
from tests.support.clients.wire import Wire

SECRET = "test-secret"


@asynccontextmanager
async def core_of(folder: Path, rpc_bind: str = "127.0.0.1:0") -> AsyncIterator[Node]:
    """A core that replicants can join."""
    tables = {
        "node": {"data_dir": str(folder / "core")},
        "listeners": {"tcp": {"default": {"bind": "127.0.0.1:0"}}},
        "cluster": {"rpc_bind": rpc_bind, "secret": SECRET},
        "history": {"bind": ""},
        "api": {"bind": ""},
    }
    core = Node(sources.from_tables(tables).settings)
    await core.start()
    try:
        yield core
    finally:
        await core.stop()


def make(folder: Path, core: Node, port: int = 0, sharing: PortSharing = PortSharing.NONE) -> Replicant:
    address = str(core.cluster_address)
    config = sources.from_tables(
        {
            "node": {"role": "replicant", "name": "r1", "data_dir": str(folder / "run")},
            "listeners": {"tcp": {"default": {"bind": f"127.0.0.1:{port}"}}},
            "cluster": {"core_nodes": [address], "secret": SECRET},
            "sys": {"interval": 0},
            "api": {"bind": "127.0.0.1:0"},
        }
    )
    side = ReplicantSide(config.settings, folder, CoreAddress(SECRET.encode(), addresses=(address,)))
    return Replicant(config, side, sharing)


def exchange(port: int) -> bytes:
    """Publish a message to oneself."""
    with Wire("127.0.0.1", port) as client:
        client.connect()
        client.subscribe("a/b")
        client.send(Publish(topic="a/b", payload=b"payload"))
        return bytes(client.receive_publish().payload)


def test_a_replicant_serves_clients_without_a_database(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with core_of(tmp_path) as core:
            node = make(tmp_path, core)
            await node.start()
            port = node.addresses["tcp:default"][1]

            assert await asyncio.to_thread(exchange, port) == b"payload"
            await node.stop()

        assert not (tmp_path / "run" / "log").exists(), "a replicant has no database"

    asyncio.run(scenario())


def test_a_worker_listens_on_the_port_that_its_core_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        [held] = await open_sockets("127.0.0.1:0", "key", PortSharing.FIRST, listens=False)
        port = held.getsockname()[1]
        async with core_of(tmp_path) as core:
            node = make(tmp_path, core, port, PortSharing.JOIN)
            await node.start()

            assert await asyncio.to_thread(exchange, port) == b"payload"
            await node.stop()
        held.close()

    asyncio.run(scenario())


def test_a_replicant_has_an_api_without_a_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with core_of(tmp_path) as core:
            node = make(tmp_path, core)
            await node.start()
            client = Client(f"http://{node.api_address}", tmp_path)
            ready = await client.get("/ready")
            status, metrics = await client.get("/status"), await client.get("/metrics")
            refused = await client.get("/ctl/history/stats")
        try:
            unready = await client.get("/ready")
        finally:
            await node.stop()

        assert json.loads(status[1])["node"] == "r1"
        assert "braidmq_live_connections_count 0" in metrics[1]
        assert "braidmq_history_records_count" not in metrics[1]
        assert refused[0] == 400
        assert "this node is a replicant and has no log: ask its core" in refused[1]
        assert ready[0] == 200
        assert unready[0] == 503
        assert "no connection to the core" in unready[1]

    asyncio.run(scenario())


@pytest.mark.parametrize("expiry", [0, 100], ids=["memory", "durable"])
def test_clients_of_a_replicant_stay_when_the_core_restarts(tmp_path: Path, expiry: int) -> None:
    def before(port: int) -> tuple[Wire, Wire]:
        watcher, client = Wire("127.0.0.1", port), Wire("127.0.0.1", port)
        watcher.connect("watcher")
        watcher.subscribe("will", qos=1)
        will = Will("will", b"gone", 1, False)
        client.connect("client", will=will, clean_start=False, session_expiry_interval=expiry)
        client.subscribe("a", qos=1)
        return watcher, client

    def after(watcher: Wire, client: Wire, core_port: int) -> None:
        client.send(Publish("a", b"held until the core is back", 1, False, False, 7))
        message = client.receive_publish()
        client.acknowledge(message)
        assert message.payload == b"held until the core is back"
        assert client.receive(Puback).packet_id == 7
        watcher.expect_silence()
        with Wire("127.0.0.1", core_port) as newer:
            newer.connect("client", clean_start=False, session_expiry_interval=expiry)
            client.expect_disconnect(0x8E)
        assert watcher.receive_publish().payload == b"gone", "once its connection has been taken over"
        watcher.close()
        client.close()

    async def scenario() -> None:
        async with core_of(tmp_path) as core:
            rpc_bind = str(core.cluster_address)
            node = make(tmp_path, core)
            await node.start()
            port = node.addresses["tcp:default"][1]
            watcher, client = await asyncio.to_thread(before, port)
        async with core_of(tmp_path, rpc_bind) as core:
            await asyncio.to_thread(after, watcher, client, core.addresses["tcp:default"][1])
            await node.stop()

    asyncio.run(scenario())


class Client:
    """Asks the API, with the token of the node."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {(folder / 'run' / TOKEN_NAME).read_text().strip()}"}

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession(headers=self._headers) as session, session.get(self._url + path) as answer:
            return answer.status, await answer.text()
