"""A log that answers what a test has put into it, for tests of the API and of the commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from braidmq.base.errors import BraidError, UsageError
from braidmq.control.history import (
    DurabilityInfo,
    DurableShard,
    GenerationInfo,
    HistoryStats,
    ReadRequest,
    Relearned,
    RelearnRequest,
    ShardPatterns,
    StreamLine,
    Token,
    TokenRequest,
    encode_lines,
)


class FakeHistory:
    """Keeps what it was asked, and answers with its lines; None among them waits until ``go_on`` is set."""

    def __init__(self) -> None:
        self.asked: list[ReadRequest] = []
        self.asked_topics: list[ReadRequest] = []
        self.lines: list[StreamLine | BraidError | None] = []
        self.backup_paths: list[str] = []
        self.forgotten: list[str] = []
        self.refusal: UsageError | None = None
        self.go_on = asyncio.Event()
        self.running = 0
        self.ended = asyncio.Event()
        self.stats_answer = HistoryStats(log_id="00ff", records=0, size_bytes=0, shards=[], readers=[])
        self.generation_list: list[GenerationInfo] = []
        self.pattern_list: list[ShardPatterns] = []
        self.asked_relearns: list[RelearnRequest] = []
        self.relearned = Relearned(is_begun=False, reason="the patterns are as good as they get")
        self.durability_answer = DurabilityInfo(
            at=1_700_000_000.0, mode="fsync", health="ok", reason="", needs_restart=False, congested=False, pending_bytes=0,
            refused=0, commits=4, commit_s_total=0.010, commit_s_max=0.007, commit_s_max_recent=None, commit_age_s=None,
            clock_alarm="", disk_bytes=2048, disk_free_bytes=3 * 1024**3, pending_compaction_bytes=0,
            shards=[DurableShard(shard=0, watermark=1_699_999_990_000_000, floor=0)],
        )  # fmt: skip

    def read(self, request: ReadRequest) -> AsyncIterator[bytes]:
        self.asked.append(request)
        return self._answer()

    def topics(self, request: ReadRequest) -> AsyncIterator[bytes]:
        self.asked_topics.append(request)
        return self._answer()

    def backup(self, path: str) -> AsyncIterator[bytes]:
        self.backup_paths.append(path)
        return self._answer()

    def _answer(self) -> AsyncIterator[bytes]:
        if self.refusal is not None:
            raise self.refusal
        return self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        self.running += 1
        try:
            for line in self.lines:
                if isinstance(line, BraidError):
                    raise line
                if line is None:
                    await self.go_on.wait()
                else:
                    yield encode_lines([line])
        finally:
            self.running -= 1
            self.ended.set()

    async def stats(self) -> HistoryStats:
        return self.stats_answer

    async def generations(self) -> list[GenerationInfo]:
        return self.generation_list

    async def patterns(self) -> list[ShardPatterns]:
        return self.pattern_list

    async def relearn(self, request: RelearnRequest) -> Relearned:
        self.asked_relearns.append(request)
        return self.relearned

    async def forget(self, name: str) -> bool:
        self.forgotten.append(name)
        return name != "nobody"

    async def token(self, request: TokenRequest) -> Token:
        """A token that says for whom and how long."""
        if self.refusal is not None:
            raise self.refusal
        return Token(f"{request.user} for {request.valid_s:g} s", 1e9)

    async def durability(self) -> DurabilityInfo:
        return self.durability_answer
