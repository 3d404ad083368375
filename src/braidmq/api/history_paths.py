"""The control paths of the durable log, ``/ctl/history/...``, ``/ctl/durability`` and ``/ctl/backup``."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from braidmq.api.answers import body_of, done, json_answer, parameter, refusal
from braidmq.api.operations import HistoryOperations
from braidmq.api.streams import stream_lines
from braidmq.base.errors import UsageError
from braidmq.control.history import ReadRequest, RelearnRequest, TokenRequest

# Each holds an iterator and a response; they take turns, so more of them are slower but do not load the node more.
READS_MAX: Final = 8
_LIMIT_MAX: Final = 10**12
_FLAGS: Final = {"0": False, "1": True}


class BackupTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /ctl/backup``."""

    path: str


class HistoryPaths:
    """The handlers; one object for each application that serves them."""

    def __init__(self, operations: HistoryOperations) -> None:
        self._operations = operations
        self._reads = 0

    def routes(self) -> list[web.RouteDef]:
        """Every control path of the log."""
        return [
            web.get("/ctl/history/records", self._records),
            web.get("/ctl/history/topics", self._topics),
            web.get("/ctl/history/stats", self._stats),
            web.get("/ctl/history/generations", self._generations),
            web.get("/ctl/history/patterns", self._patterns),
            web.post("/ctl/history/relearn", self._relearn),
            web.delete("/ctl/history/reader", self._forget),
            web.post("/ctl/history/token", self._token),
            web.get("/ctl/durability", self._durability),
            web.post("/ctl/backup", self._backup),
        ]

    async def _records(self, request: web.Request) -> web.StreamResponse:
        return await self._read(request, is_for_topics=False)

    async def _topics(self, request: web.Request) -> web.StreamResponse:
        return await self._read(request, is_for_topics=True)

    async def _read(self, request: web.Request, *, is_for_topics: bool) -> web.StreamResponse:
        wanted = read_request(request)
        if self._reads >= READS_MAX:
            return refusal(503, "BUSY", f"{READS_MAX} reads of the history are already running; retry when one has finished")
        self._reads += 1
        try:
            lines = self._operations.topics(wanted) if is_for_topics else self._operations.read(wanted)
            return await stream_lines(request, lines)
        finally:
            self._reads -= 1

    async def _stats(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.stats())

    async def _generations(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.generations())

    async def _patterns(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.patterns())

    async def _relearn(self, request: web.Request) -> web.Response:
        wanted = await body_of(request, RelearnRequest) if request.can_read_body else RelearnRequest()
        return json_answer(await self._operations.relearn(wanted))

    async def _forget(self, request: web.Request) -> web.Response:
        name = parameter(request, "name")
        return done(await self._operations.forget(name), "reader", name)

    async def _token(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.token(await body_of(request, TokenRequest)))

    async def _durability(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.durability())

    async def _backup(self, request: web.Request) -> web.StreamResponse:
        target = await body_of(request, BackupTarget)
        return await stream_lines(request, self._operations.backup(target.path))


def read_request(request: web.Request) -> ReadRequest:
    """The request that ``filter`` (may be repeated), ``from``, ``to``, ``limit`` and ``follow`` describe."""
    query = request.query
    limit = query.get("limit", "0")
    if not (limit.isascii() and limit.isdecimal() and int(limit) <= _LIMIT_MAX):
        raise UsageError(f"limit must be a number, not {limit!r}")
    follow = query.get("follow", "0")
    if follow not in _FLAGS:
        raise UsageError(f"follow must be 0 or 1, not {follow!r}")
    return ReadRequest(
        filters=tuple(query.getall("filter", [])),
        start=query.get("from", "earliest"),
        end=query.get("to", "latest"),
        limit=int(limit),
        follow=_FLAGS[follow],
    )
