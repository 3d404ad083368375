"""Named readers of several cores, and questions between their history services, on the nodes' side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from braidmq.base.config import sources
from braidmq.base.config.addresses import Address
from braidmq.base.errors import Unavailable, UsageError
from braidmq.base.shards import shard_of
from braidmq.history.messages import AskCore, CoreAway, CoreTold, Denied, Noted, SaveReader
from braidmq.history.node_side.cluster_reads import ClusterReads, address_of_readers

LEADERS = ["one", "two", "three", "one", "two", "three"]
ALL = {shard: 10 + shard for shard in range(6)}

Operation = Callable[[bytes], Awaitable[bytes]]


class Network:
    """Cores that ask each other without connections."""

    def __init__(self) -> None:
        self.operations: dict[tuple[str, str], Operation] = {}
        self.away: set[str] = set()
        self.saved: list[tuple[str, dict[int, int]]] = []
        self.refusals: dict[str, str] = {}
        self.cores = {name: self._core(name) for name in ("one", "two", "three")}

    def _core(self, name: str) -> ClusterReads:
        calls: Any = NetworkCalls(self, name)
        core = ClusterReads(name, LEADERS, calls, Address("10.0.0.1", 8815))

        async def answer(request: bytes) -> bytes:
            return name.encode() + request

        core.serve(answer, lambda reader: self.save(name, reader))
        return core

    async def save(self, core: str, reader: SaveReader) -> Noted | Denied:
        self.saved.append((core, reader.positions))
        return Denied(self.refusals[core]) if core in self.refusals else Noted()

    def note(self, asked: str, positions: dict[int, int], name: str = "nightly") -> Any:
        reader = SaveReader(name, "ann", positions, ["a/#"])
        return asyncio.run(self.cores[asked].save(reader, lambda part: self.save(asked, part)))


class NetworkCalls:
    """In place of a core's calls to the others."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._name = name

    def serve(self, operation: str, handler: Operation) -> None:
        self._network.operations[self._name, operation] = handler

    async def ask(self, core: str, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        if core in self._network.away:
            raise Unavailable(f"core {core} is away")
        return await self._network.operations[core, operation](arguments)


@pytest.mark.parametrize("asked", ["one", "two", "three"])
def test_each_core_stores_the_positions_of_a_reader_in_its_own_shards(asked: str) -> None:
    network = Network()

    assert network.note(asked, ALL) == Noted()

    assert dict(network.saved) == {"one": {0: 10, 3: 13}, "two": {1: 11, 4: 14}, "three": {2: 12, 5: 15}}
    assert network.saved[0][0] == LEADERS[shard_of("nightly", 6)]


def test_the_core_of_a_name_decides_whose_it_is_before_any_other_stores_it() -> None:
    network = Network()
    first = LEADERS[shard_of("nightly", 6)]
    network.refusals[first] = "it belongs to another user"

    assert network.note("one", ALL) == Denied("it belongs to another user")

    assert [core for core, _ in network.saved] == [first]


def test_a_reader_learns_which_core_could_not_store_its_position() -> None:
    network = Network()
    second = next(name for name in network.cores if name != LEADERS[shard_of("nightly", 6)])
    asked = next(name for name in network.cores if name != second)
    network.away.add(second)

    assert network.note(asked, ALL) == CoreAway(f"core {second} is away")
    network.away.clear()
    assert network.note(asked, ALL) == Noted()


def test_positions_outside_the_log_are_denied_before_anything_is_stored() -> None:
    network = Network()

    assert network.note("one", {0: 1, 6: 1}) == Denied("the log has 6 shards and no shard 6")
    assert network.saved == []


def test_a_service_gets_the_answer_of_another_core_or_its_name() -> None:
    network = Network()

    assert asyncio.run(network.cores["one"].ask(AskCore("two", b" is asked"))) == CoreTold(b"two is asked")
    network.away.add("two")
    assert asyncio.run(network.cores["one"].ask(AskCore("two", b""))) == CoreAway("core two is away")


def test_what_is_not_a_reader_is_refused() -> None:
    network = Network()
    (save,) = (handler for (core, name), handler in network.operations.items() if core == "two" and "reader" in name)

    async def send() -> None:
        await save(b"\xc1")

    with pytest.raises(UsageError, match="cannot be read"):
        asyncio.run(send())


def test_readers_are_sent_to_a_host_that_they_can_reach() -> None:
    def address(history: dict[str, str], cluster: dict[str, str]) -> str:
        tables = {"history": {"anonymous": "all"} | history, "cluster": {"secret": "s" * 40, "store": "etcd"} | cluster}
        return str(address_of_readers(sources.from_tables(tables).settings))

    core = {"rpc_bind": "0.0.0.0:4370", "rpc_address": "10.0.0.7:4370"}
    assert address({"bind": "127.0.0.1:8815"}, core) == "127.0.0.1:8815"
    assert address({"bind": "0.0.0.0:8815"}, core) == "10.0.0.7:8815"
    assert address({"bind": ":0"}, {"rpc_bind": "10.0.0.8:4370"}) == "10.0.0.8:0"
    assert address({"bind": "0.0.0.0:8815", "address": "log.example:443"}, core) == "log.example:443"
