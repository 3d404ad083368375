"""The control paths, ``/ctl/...``, which ``braidmq ctl`` uses. ``server.py`` checks permissions.

Names of clients and topics are parameters and not parts of the path, because a client id may be ``..`` or ``a/b``.
"""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec
from aiohttp import web

from braidmq.api.answers import body_of, done, json_answer, no_such, page_of, parameter, refusal
from braidmq.api.history_paths import HistoryPaths
from braidmq.api.operations import Operations
from braidmq.api.streams import stream_text
from braidmq.base.errors import UsageError
from braidmq.control.cluster import DrainRequest
from braidmq.control.contract import BanInfo, BanKind, LogLevel, TraceKind

TRACES_MAX: Final = 16


class ConfChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``PUT /ctl/conf``."""

    key: str
    value: str


class LevelChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``PUT /ctl/log/level``."""

    level: LogLevel


class Control:
    """The handlers; one object for each application that serves them."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._history = HistoryPaths(operations.history)
        self._traces = 0

    def routes(self) -> list[web.RouteDef]:
        """Every control path."""
        return [
            *self._history.routes(),
            web.get("/ctl/status", self._status),
            web.get("/ctl/cluster", self._cluster),
            web.delete("/ctl/cluster/node", self._forget),
            web.get("/ctl/cluster/shards", self._shards),
            web.get("/ctl/cluster/join", self._plan_joining),
            web.post("/ctl/cluster/leave", self._leave),
            web.delete("/ctl/cluster/leave", self._finish_leaving),
            web.post("/ctl/drain", self._drain),
            web.get("/ctl/drain", self._drain_status),
            web.get("/ctl/registry", self._registry_stats),
            web.get("/ctl/registry/client", self._registry_show),
            web.post("/ctl/registry/sweep", self._registry_sweep),
            web.get("/ctl/clients", self._clients),
            web.get("/ctl/client", self._client),
            web.delete("/ctl/client", self._kick),
            web.get("/ctl/sessions", self._sessions),
            web.get("/ctl/session", self._session),
            web.delete("/ctl/session", self._session_drop),
            web.get("/ctl/subscriptions", self._subscriptions),
            web.get("/ctl/topics", self._topics),
            web.get("/ctl/retained", self._retained),
            web.delete("/ctl/retained", self._retained_remove),
            web.get("/ctl/listeners", self._listeners),
            web.get("/ctl/bans", self._bans),
            web.post("/ctl/bans", self._ban_add),
            web.delete("/ctl/bans", self._ban_remove),
            web.get("/ctl/conf", self._conf_show),
            web.put("/ctl/conf", self._conf_set),
            web.delete("/ctl/conf", self._conf_unset),
            web.get("/ctl/log/level", self._log_level),
            web.put("/ctl/log/level", self._log_level_set),
            web.get("/ctl/trace", self._trace),
        ]

    async def _status(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.overview())

    async def _cluster(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.cluster())

    async def _forget(self, request: web.Request) -> web.Response:
        await self._operations.forget(parameter(request, "name"))
        return web.Response(status=204)

    async def _shards(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.shards())

    async def _plan_joining(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.plan_joining(parameter(request, "name"), parameter(request, "role")))

    async def _leave(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.leave(await body_of(request, DrainRequest)))

    async def _finish_leaving(self, request: web.Request) -> web.Response:
        await self._operations.finish_leaving(parameter(request, "name"))
        return web.Response(status=204)

    async def _drain(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.drain(await body_of(request, DrainRequest)))

    async def _drain_status(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.drain_status(request.query.get("node", "")))

    async def _registry_show(self, request: web.Request) -> web.Response:
        client_id = parameter(request, "id")
        found = await self._operations.registry_show(client_id)
        return no_such("client", client_id) if found is None else json_answer(found)

    async def _registry_stats(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.registry_stats())

    async def _registry_sweep(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.registry_sweep())

    async def _clients(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.clients(page_of(request)))

    async def _client(self, request: web.Request) -> web.Response:
        client_id = parameter(request, "id")
        found = await self._operations.client(client_id)
        return no_such("client", client_id) if found is None else json_answer(found)

    async def _kick(self, request: web.Request) -> web.Response:
        client_id = parameter(request, "id")
        return done(await self._operations.kick(client_id), "client", client_id)

    async def _sessions(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.sessions(page_of(request)))

    async def _session(self, request: web.Request) -> web.Response:
        client_id = parameter(request, "id")
        found = await self._operations.session(client_id)
        return no_such("session", client_id) if found is None else json_answer(found)

    async def _session_drop(self, request: web.Request) -> web.Response:
        client_id = parameter(request, "id")
        return done(await self._operations.kick(client_id), "session", client_id)

    async def _subscriptions(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.subscriptions(page_of(request), request.query.get("client")))

    async def _topics(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.topics(page_of(request)))

    async def _retained(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.retained(page_of(request)))

    async def _retained_remove(self, request: web.Request) -> web.Response:
        topic = parameter(request, "topic")
        return done(await self._operations.retained_remove(topic), "retained message on", topic)

    async def _listeners(self, _: web.Request) -> web.Response:
        return json_answer(await self._operations.listeners())

    async def _bans(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.bans(page_of(request)))

    async def _ban_add(self, request: web.Request) -> web.Response:
        return json_answer({"silent": await self._operations.ban_add(await body_of(request, BanInfo))})

    async def _ban_remove(self, request: web.Request) -> web.Response:
        kind, value = _choice(parameter(request, "kind"), BanKind), parameter(request, "value")
        return done(await self._operations.ban_remove(kind, value), f"ban of {kind}", value)

    async def _conf_show(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.conf_show(request.query.get("prefix", "")))

    async def _conf_set(self, request: web.Request) -> web.Response:
        change = await body_of(request, ConfChange)
        return json_answer(await self._operations.conf_set(change.key, change.value))

    async def _conf_unset(self, request: web.Request) -> web.Response:
        return json_answer(await self._operations.conf_unset(parameter(request, "key")))

    async def _log_level(self, _: web.Request) -> web.Response:
        return json_answer({"level": await self._operations.log_level()})

    async def _log_level_set(self, request: web.Request) -> web.Response:
        change = await body_of(request, LevelChange)
        return json_answer({"level": await self._operations.log_level(change.level)})

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        kind, value = _choice(parameter(request, "kind"), TraceKind), parameter(request, "value")
        if self._traces >= TRACES_MAX:
            return refusal(503, "BUSY", f"{TRACES_MAX} traces are already running")
        self._traces += 1
        try:
            return await stream_text(request, self._operations.trace(kind, value))
        finally:
            self._traces -= 1


def _choice(text: str, literal: object) -> Any:
    choices = get_args(literal)
    if text not in choices:
        raise UsageError(f"{text!r} is not one of {', '.join(choices)}")
    return text
