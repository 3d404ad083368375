"""The history of several cores, on the node's side: carries what their services ask each other, and stores named readers.

The cores' own connections carry both, so a service trusts another one without credentials of its own. The core that a reader has
called has checked its access.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from braidmq.base.config.addresses import Address, is_any_host, parse_address
from braidmq.base.config.settings import Settings
from braidmq.base.errors import Unavailable, UsageError
from braidmq.base.shards import shard_of
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.history.messages import AskCore, Cluster, CoreAway, CoreTold, Denied, Noted, SaveReader

# Less than a service waits for its node.
_ANSWER_S: Final = 8.0
_OWN_SHARDS: Final = "history"
_SAVE_READER: Final = "save reader"

Saved = Noted | Denied | CoreAway
_saves: Final = msgspec.msgpack.Decoder(SaveReader)
_saved: Final[msgspec.msgpack.Decoder[Noted | Denied]] = msgspec.msgpack.Decoder(Noted | Denied)


class ClusterReads:
    """What the history service of one of several cores has of the others."""

    def __init__(self, name: str, leaders: Sequence[str], calls: CoreCalls, address: Address) -> None:
        """``leaders``: the core of each shard. ``address``: where readers reach this service; port 0: the one that it gets."""
        self._name = name
        self._leaders = leaders
        self._calls = calls
        self._address = address

    @property
    def setup(self) -> Cluster:
        """What the service is told."""
        cores: dict[str, list[int]] = {}
        for shard, core in enumerate(self._leaders):
            cores.setdefault(core, []).append(shard)
        return Cluster(self._name, cores, self._address.host, self._address.port)

    def serve(self, answer: Callable[[bytes], Awaitable[bytes]], save: Callable[[SaveReader], Awaitable[Noted | Denied]]) -> None:
        """Answer other cores: ``answer`` what they ask about this core's shards, ``save`` positions of readers in them."""

        async def save_encoded(arguments: bytes) -> bytes:
            return msgspec.msgpack.encode(await save(_decode(arguments)))

        self._calls.serve(_OWN_SHARDS, answer)
        self._calls.serve(_SAVE_READER, save_encoded)

    async def ask(self, question: AskCore) -> CoreTold | CoreAway:
        """What another core's service says."""
        try:
            return CoreTold(await self._calls.ask(question.core, _OWN_SHARDS, question.request, _ANSWER_S))
        except (Unavailable, UsageError) as problem:
            return CoreAway(problem.detail)

    async def save(self, reader: SaveReader, save_here: Callable[[SaveReader], Awaitable[Noted | Denied]]) -> Saved:
        """Store the positions of a reader, each at the core that leads its shard.

        The core of the name comes first: of two users who take a name at once, it lets one have it.
        """
        unknown = [shard for shard in reader.positions if not 0 <= shard < len(self._leaders)]
        if unknown:
            return Denied(f"the log has {len(self._leaders)} shards and no shard {unknown[0]}")
        by_core: dict[str, dict[int, int]] = {}
        for shard, position in reader.positions.items():
            by_core.setdefault(self._leaders[shard], {})[shard] = position
        first = self._leaders[shard_of(reader.name, len(self._leaders))]
        if first in by_core:
            saved = await self._save(first, reader, by_core.pop(first), save_here)
            if not isinstance(saved, Noted):
                return saved
        others = [self._save(core, reader, positions, save_here) for core, positions in sorted(by_core.items())]
        results = await asyncio.gather(*others)
        return next((each for each in results if not isinstance(each, Noted)), Noted())

    async def _save(
        self,
        core: str,
        reader: SaveReader,
        positions: Mapping[int, int],
        save_here: Callable[[SaveReader], Awaitable[Noted | Denied]],
    ) -> Saved:
        part = msgspec.structs.replace(reader, positions=dict(positions))
        if core == self._name:
            return await save_here(part)
        try:
            return _saved.decode(await self._calls.ask(core, _SAVE_READER, msgspec.msgpack.encode(part), _ANSWER_S))
        except (Unavailable, UsageError) as problem:
            return CoreAway(problem.detail)
        except msgspec.MsgspecError:
            return CoreAway(f"core {core} has another version of braidmq")


def address_of_readers(settings: Settings) -> Address:
    """Where readers reach the service. If it listens on all addresses, that is the host by which other nodes reach the core."""
    history, cluster = settings.history, settings.cluster
    if history.address:
        return parse_address(history.address)
    bind = parse_address(history.bind)
    if not is_any_host(bind.host):
        return bind
    return Address(parse_address(cluster.rpc_address or cluster.rpc_bind).host, bind.port)


def _decode(arguments: bytes) -> SaveReader:
    try:
        return _saves.decode(arguments)
    except msgspec.MsgspecError as problem:
        raise UsageError(f"a reader's positions cannot be read: {problem}") from None
