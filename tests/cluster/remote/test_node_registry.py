"""The registry as a node sees it: what its home says in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from braidmq.broker.session.ports import Claim, Grant, GrantEnding
from braidmq.cluster.registry.node_claims import NodeClaims
from braidmq.cluster.remote.registry import NodeRegistry
from braidmq.net.proto_v1 import ReleaseEntry, WithdrawEntry
from braidmq.net.proto_v1_claims import ClaimMessage, CloseChannel, EndId, GrantId, VersionId

OLDER, NEWER = VersionId(1000, 1, 1, 0, 5), VersionId(1001, 2, 1, 0, 5)


class House:
    """A node's registry whose home is the test."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.released: list[ReleaseEntry | WithdrawEntry] = []
        self.closed: list[str] = []  # client ids whose connection was to be closed
        self.registry = NodeRegistry(
            NodeClaims(), self, loop, lambda claim: None, lambda client_id, reason, detail: self.closed.append(client_id), 15.0
        )

    def shard_of(self, client_id: str) -> int:
        return 0

    def add_entry(self, shard: int, entry: ReleaseEntry | WithdrawEntry, on_answer: Callable[[], None]) -> None:
        self.released.append(entry)

    def granted(self, *then: ClaimMessage) -> Grant:
        """A claim is granted, and in the same frame the home says this, before the CONNECT goes on."""

        async def claim() -> Grant:
            asked = self.registry.claim(Claim("c", None, False, 0, None, None))
            for message in (GrantId(1, 900, OLDER, 0, b"", None), *then):
                self.registry.receive(message, "core1")
            assert not isinstance(asked, Grant)
            found = await asked  # type: ignore[misc]
            assert isinstance(found, Grant)
            return found

        return self.loop.run_until_complete(claim())


@pytest.fixture
def house() -> Iterator[House]:
    loop = asyncio.new_event_loop()
    yield House(loop)
    loop.close()


def test_a_granted_channel_is_committed(house: House) -> None:
    assert house.registry.commit(house.granted())


@pytest.mark.parametrize("end", [EndId("c", NEWER, 0), EndId("c", OLDER, 0, kicked=1), CloseChannel(1, 0x8A, "banned")])
def test_a_channel_that_ends_before_its_session_is_open_is_not_committed(house: House, end: ClaimMessage) -> None:
    grant = house.granted(end)

    assert house.closed == ["c"], "nothing is open that could be closed"
    assert not house.registry.commit(grant)
    house.registry.end(grant, keeps_session=False, ending=GrantEnding.WITHDRAWN)
    assert house.released == [ReleaseEntry(1, "withdrawn")]


def test_an_end_that_is_not_about_the_channel_does_not_keep_it_out(house: House) -> None:
    assert house.registry.commit(house.granted(EndId("c", OLDER, 0), EndId("d", NEWER, 0), CloseChannel(2, 0x8A, "banned")))
    assert house.closed == []
