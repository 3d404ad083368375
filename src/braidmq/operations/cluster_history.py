"""The log of several cores as an operator sees and manages it at any of them: each core is asked for the shards that it leads.

Figures are those of the cores that answer, and name the others. What must be whole (records, topics, generations, patterns) fails
while a core is away, and the error names it. A backup, tokens and the state of the disk are those of the asked core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from braidmq.base.errors import Unavailable
from braidmq.cluster.administration.questions import Silence
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.control.history import (
    GenerationInfo,
    HistoryStats,
    ReaderInfo,
    ReadRequest,
    Relearned,
    RelearnRequest,
    ShardPatterns,
)
from braidmq.operations.answers import decode
from braidmq.operations.backup import Covered
from braidmq.operations.cluster_walk import ClusterWalk
from braidmq.operations.history import NodeHistory, RecordingNode, Walk
from braidmq.operations.log_part import LedPart, LogPart, PageOf, PartPage, PartSpan, PieceOf, Span
from braidmq.operations.questions import CORE_PREFIX, ClusterQuestions

_SPAN: Final = "history span"
_PAGE: Final = "history page"
_PIECE: Final = "history piece"
_STATS: Final = "history stats"
_GENERATIONS: Final = "history generations"
_PATTERNS: Final = "history patterns"
_RELEARN: Final = "history relearn"
_FORGET: Final = "history forget"

Value = TypeVar("Value")
Argument = TypeVar("Argument")


class RecordingCore(RecordingNode, Protocol):
    """A core, as these operations see it."""

    @property
    def led_shards(self) -> Collection[int]: ...
    @property
    def core_calls(self) -> CoreCalls: ...


class _AskedPart:
    """The part of another core; implements `LogPart`."""

    def __init__(self, name: str, asking: ClusterQuestions) -> None:
        self._name = name
        self._asking = asking

    async def span(self, span: Span) -> PartSpan:
        return await self._asking.ask_core(self._name, _SPAN, span, PartSpan)

    async def page(self, page: PageOf) -> PartPage:
        return await self._asking.ask_core(self._name, _PAGE, page, PartPage)

    async def piece(self, piece: PieceOf) -> bytes:
        return await self._asking.ask_core(self._name, _PIECE, piece, bytes)


class ClusterHistory(NodeHistory):
    """The history of a core that is one of several; it also answers the others."""

    def __init__(self, core: RecordingCore, asking: ClusterQuestions) -> None:
        super().__init__(core)
        self._core = core
        self._asking = asking
        self._own_part = LedPart(core.log, core.led_shards)
        self._parts: list[LogPart] = [self._own_part, *(_AskedPart(name, asking) for name in core.core_calls.cores)]

    def serve(self) -> None:
        """Answer the other cores from now on."""
        own = self._own_part
        self._serve(_SPAN, Span, own.span)
        self._serve(_PAGE, PageOf, own.page)
        self._serve(_PIECE, PieceOf, own.piece)
        self._serve(_STATS, type(None), lambda _: self._own_stats())
        self._serve(_GENERATIONS, type(None), lambda _: self._own_generations())
        self._serve(_PATTERNS, type(None), lambda _: self._own_patterns())
        self._serve(_RELEARN, RelearnRequest, super().relearn)
        self._serve(_FORGET, str, super().forget)

    def _serve(self, operation: str, type_: type[Argument], handler: Callable[[Argument], Awaitable[object]]) -> None:
        async def answer(arguments: bytes) -> bytes:
            return msgspec.json.encode(await handler(decode(arguments, type_)))

        self._core.core_calls.serve(CORE_PREFIX + operation, answer)

    def _walk(self, request: ReadRequest) -> Walk:
        return ClusterWalk(self._parts, request)

    def _covered(self) -> Covered:
        """Each core's files are on its own machine, so each core makes its own backup."""
        return Covered(sorted(self._core.led_shards), sorted(self._core.core_calls.cores))

    # Figures

    async def stats(self) -> HistoryStats:
        """Statistics of the log, without the shards of cores that do not answer."""
        own, others = await asyncio.gather(self._own_stats(), self._asking.ask_cores(_STATS, None, HistoryStats))
        silent = {name: each.reason for name, each in others.items() if isinstance(each, Silence)}
        found = [own, *(each for each in others.values() if not isinstance(each, Silence))]
        return HistoryStats(
            log_id=own.log_id,
            records=sum(each.records for each in found),
            size_bytes=sum(each.size_bytes for each in found),
            shards=sorted((shard for each in found for shard in each.shards), key=lambda shard: shard.shard),
            readers=_merged(reader for each in found for reader in each.readers),
            readers_more=max(each.readers_more for each in found),
            silent=silent,
        )

    async def _own_stats(self) -> HistoryStats:
        stats = await super().stats()
        return replace(stats, shards=[each for each in stats.shards if each.shard in self._core.led_shards])

    # Generations

    async def generations(self) -> list[GenerationInfo]:
        """Every generation, by shard and number."""
        found = await self._gather(self._own_generations(), _GENERATIONS, list[GenerationInfo])
        return sorted((each for part in found for each in part), key=lambda each: (each.shard, each.number))

    async def _own_generations(self) -> list[GenerationInfo]:
        return [each for each in await super().generations() if each.shard in self._core.led_shards]

    async def patterns(self) -> list[ShardPatterns]:
        """The patterns that records are being written with, by shard."""
        found = await self._gather(self._own_patterns(), _PATTERNS, list[ShardPatterns])
        return sorted((each for part in found for each in part), key=lambda each: each.shard)

    async def _own_patterns(self) -> list[ShardPatterns]:
        return [each for each in await super().patterns() if each.shard in self._core.led_shards]

    async def _gather(self, own: Awaitable[Value], operation: str, type_: type[Value]) -> Sequence[Value]:
        """The own value and those of all other cores; raises Unavailable if one is away."""
        others = (self._asking.ask_core(name, operation, None, type_) for name in self._core.core_calls.cores)
        return await asyncio.gather(own, *others)

    async def relearn(self, request: RelearnRequest) -> Relearned:
        """Start a generation at every core that answers, where that helps; the reason says what each core did."""
        own = await super().relearn(request)
        others = await self._asking.ask_cores(_RELEARN, request, Relearned)
        reasons = [f"{self._core.settings.node.name}: {own.reason}"]
        for name, each in others.items():
            reasons.append(f"{name}: {each.reason}")
        done = [own, *(each for each in others.values() if isinstance(each, Relearned))]
        return Relearned(is_begun=any(each.is_begun for each in done), reason="; ".join(reasons))

    async def forget(self, name: str) -> bool:
        """Remove a named reader everywhere; raises Unavailable if a core is away, which still has it then."""
        own = await super().forget(name)
        others = await self._asking.ask_cores(_FORGET, name, bool)
        for core, each in others.items():
            if isinstance(each, Silence):
                raise Unavailable(f"reader {name!r} was not removed at core {core}: {each.reason}")
        return own or any(others.values())


def _merged(readers: Iterable[ReaderInfo]) -> list[ReaderInfo]:
    """One entry for each reader, of its parts at the cores."""
    found: dict[str, ReaderInfo] = {}
    for each in readers:
        before = found.get(each.name)
        found[each.name] = each if before is None else _both(before, each)
    return sorted(found.values(), key=lambda each: each.name)


def _both(one: ReaderInfo, other: ReaderInfo) -> ReaderInfo:
    return ReaderInfo(
        name=one.name,
        records_behind=one.records_behind + other.records_behind,
        lag_s=max(one.lag_s, other.lag_s),
        pins=one.pins or other.pins,
        user=one.user or other.user,
        filters=one.filters or other.filters,
        is_estimate=one.is_estimate or other.is_estimate,
        is_upper_bound=one.is_upper_bound or other.is_upper_bound,
    )
