"""The public paths of the HTTP listener: ``/metrics``, ``/status`` and ``/ready``."""

from __future__ import annotations

from aiohttp import web

from braidmq.api import prometheus
from braidmq.api.answers import json_answer
from braidmq.api.operations import Operations


def public_routes(operations: Operations) -> list[web.RouteDef]:
    """The three paths; none of them reveals a client, a user or a topic."""
    process = prometheus.ProcessMetrics()

    async def metrics(_: web.Request) -> web.Response:
        text = prometheus.render(operations.metrics()) + process.render()
        return web.Response(body=text.encode(), headers={"Content-Type": prometheus.CONTENT_TYPE})

    async def status(_: web.Request) -> web.Response:
        return json_answer(operations.status())

    async def ready(_: web.Request) -> web.Response:
        waits_for = operations.status().not_ready
        return json_answer({"ready": not waits_for, "reason": waits_for}, 503 if waits_for else 200)

    return [web.get("/metrics", metrics), web.get("/status", status), web.get("/ready", ready)]
