"""Requests and responses of the HTTP API: parameters, JSON, and errors as ``{"code", "message"}``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from braidmq.base.errors import BraidError, Unavailable, UsageError
from braidmq.control.contract import PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, PageRequest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Body = TypeVar("Body")

REQUESTS_MAX: Final = 64  # simultaneous requests of one listener; a scrape needs one
CURSOR_CHARS_MAX: Final = 65_536 + 256  # a topic or a client id, and what a node may add to it

log = logging.getLogger("braidmq.api")


def json_answer(value: object, status: int = 200) -> web.Response:
    """A value as a JSON document."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def refusal(status: int, code: str, message: str) -> web.Response:
    """An error response."""
    return json_answer({"code": code, "message": message}, status)


def page_of(request: web.Request) -> PageRequest:
    """The page that the parameters ``limit``, ``cursor`` and ``contains`` select."""
    text = request.query.get("limit", str(PAGE_LIMIT_DEFAULT))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= PAGE_LIMIT_MAX):
        raise UsageError(f"limit must be a number from 1 to {PAGE_LIMIT_MAX}, not {text!r}")
    cursor = request.query.get("cursor", "")
    if len(cursor) > CURSOR_CHARS_MAX:
        raise UsageError("invalid page cursor", "start again without a cursor")
    return PageRequest(limit=int(text), cursor=cursor, contains=request.query.get("contains", ""))


def parameter(request: web.Request, name: str) -> str:
    """A required parameter."""
    value = request.query.get(name)
    if value is None:
        raise UsageError(f"the parameter {name!r} is missing")
    return value


def done(happened: bool, what: str, name: str) -> web.Response:
    """An empty response, or 404 if nothing happened."""
    return web.Response(status=204) if happened else no_such(what, name)


def no_such(what: str, name: str) -> web.Response:
    """The response for an unknown name."""
    return refusal(404, "NOT_FOUND", f"there is no {what} {name!r}")


async def body_of(request: web.Request, type_: type[Body]) -> Body:
    """The JSON body, decoded to this type."""
    try:
        return msgspec.json.decode(await request.read(), type=type_)
    except msgspec.DecodeError as error:
        raise UsageError(f"invalid request body: {error}") from None


@web.middleware
async def errors_in_words(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error into an answer; unexpected errors are logged and not shown to the client."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return refusal(error.status, error.reason.upper().replace(" ", "_"), f"{request.method} {request.path}: {error.reason}")
    except UsageError as error:
        return refusal(400, "BAD_REQUEST", str(error))
    except Unavailable as error:
        return refusal(503, "UNAVAILABLE", str(error))
    except BraidError as error:
        return refusal(500, "FAILED", str(error))
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        log.exception("request failed: %s %s", request.method, request.path)
        return refusal(500, "INTERNAL_ERROR", "the request failed; see the node's log")


def bounded(requests_max: int = REQUESTS_MAX) -> Middleware:
    """A middleware that rejects requests while ``requests_max`` others are in progress."""
    running = 0

    @web.middleware
    async def bound(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal running
        if running >= requests_max:
            return refusal(503, "BUSY", f"{requests_max} requests are already in progress; retry later")
        running += 1
        try:
            return await handler(request)
        finally:
            running -= 1

    return bound
