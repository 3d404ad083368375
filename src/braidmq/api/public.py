"""The public paths of the HTTP listener: ``/metrics``, ``/metrics/nodes``, ``/status`` and ``/ready``."""

from __future__ import annotations

from aiohttp import web

from braidmq.api import prometheus
from braidmq.api.answers import json_answer
from braidmq.api.operations import Operations
from braidmq.control.cluster import NodeMetrics


def text_answer(text: str) -> web.Response:
    """Lines in the format of Prometheus."""
    return web.Response(body=text.encode(), headers={"Content-Type": prometheus.CONTENT_TYPE})


def public_routes(operations: Operations) -> list[web.RouteDef]:
    """The paths; none of them reveals a client, a user or a topic."""
    process = prometheus.ProcessMetrics()

    async def metrics(_: web.Request) -> web.Response:
        found = await operations.all_metrics()
        return text_answer(prometheus.render(found.totals) + prometheus.render_presence(found.nodes) + process.render())

    async def node_metrics(_: web.Request) -> web.Response:
        found = await operations.all_metrics()
        own = NodeMetrics(operations.status().node, "core", operations.metrics())
        return text_answer(prometheus.render_nodes([own, *found.nodes] if found.nodes else [own]))

    async def status(_: web.Request) -> web.Response:
        return json_answer(await operations.overview())

    async def ready(_: web.Request) -> web.Response:
        waits_for = operations.status().not_ready
        return json_answer({"ready": not waits_for, "reason": waits_for}, 503 if waits_for else 200)

    return [
        web.get("/metrics", metrics),
        web.get("/metrics/nodes", node_metrics),
        web.get("/status", status),
        web.get("/ready", ready),
    ]
