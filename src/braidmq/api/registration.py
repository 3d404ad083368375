"""``POST /register?endpoint=HOST:PORT``: gives a node its registration id and tells it the cores of the cluster.

Requests from this machine need no signature. Others carry the time in seconds since 1970 in ``X-Braidmq-Time`` and, in
``X-Braidmq-Signature``, the HMAC-SHA256 in hexadecimal digits of ``register\\nENDPOINT\\nTIME`` under ``cluster.secret``.
A request that is repeated within its minute gets the same answer and changes nothing.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from braidmq.api.answers import json_answer, parameter, refusal
from braidmq.base.config.addresses import is_loopback, parse_address
from braidmq.base.errors import UsageError

TIME_HEADER: Final = "X-Braidmq-Time"
SIGNATURE_HEADER: Final = "X-Braidmq-Signature"
_AGE_S_MAX: Final = 60


class EndpointRegistration(msgspec.Struct, frozen=True):
    """The answer."""

    reg_id: int
    core_nodes: list[str]


Register = Callable[[str], Awaitable[EndpointRegistration]]


def sign(secret: str, endpoint: str, at: int) -> str:
    """The signature of a request."""
    return hmac.digest(secret.encode(), f"register\n{endpoint}\n{at}".encode(), "sha256").hex()


def registration_routes(register: Register, secret: str) -> list[web.RouteDef]:
    """The path. ``register`` raises UsageError if the node accepts no other nodes, and Unavailable."""

    async def handle(request: web.Request) -> web.Response:
        endpoint = parameter(request, "endpoint")
        if "Origin" in request.headers:
            return refusal(403, "FORBIDDEN", "web pages cannot register nodes")
        if not is_loopback(request.remote or "") and not _is_signed(request, secret, endpoint):
            return refusal(401, "UNAUTHORIZED", "the request is not signed with cluster.secret, or its time is over")
        try:
            address = parse_address(endpoint)
        except ValueError as problem:
            raise UsageError(f"{endpoint!r}: {problem}") from None
        if not address.host or not address.port:
            raise UsageError(f"{endpoint!r} does not name a host and a port")
        return json_answer(await register(str(address)))

    return [web.post("/register", handle)]


def _is_signed(request: web.Request, secret: str, endpoint: str) -> bool:
    at = request.headers.get(TIME_HEADER, "")
    if not secret or not (at.isascii() and at.isdecimal() and len(at) <= 12):
        return False
    shown = request.headers.get(SIGNATURE_HEADER, "").encode("utf-8", "surrogateescape")
    is_right = hmac.compare_digest(shown, sign(secret, endpoint, int(at)).encode())
    return is_right and abs(time.time() - int(at)) <= _AGE_S_MAX
