"""Streaming responses: lines as they occur, at the pace of the reader."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from aiohttp import web

from braidmq.base.errors import BraidError
from braidmq.control.history import Failed, encode_lines

log = logging.getLogger("braidmq.api")


async def stream_text(request: web.Request, lines: AsyncIterator[str]) -> web.StreamResponse:
    """Send lines of text. A client that disconnects cancels this handler, which closes the iterator."""
    response = await _prepared(request, "text/plain; charset=utf-8")
    async with _closed(lines):
        with contextlib.suppress(ConnectionError):
            async for line in lines:
                await response.write(line.encode() + b"\n")
            await response.write_eof()
    return response


async def stream_lines(request: web.Request, lines: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send JSON lines, several at a time. An error becomes the last line, because the status was sent long before."""
    response = await _prepared(request, "application/x-ndjson")
    async with _closed(lines):
        with contextlib.suppress(ConnectionError):
            try:
                async for some in lines:
                    if some:
                        await response.write(some)
            except BraidError as error:
                await response.write(encode_lines([Failed(message=str(error))]))
            except ConnectionError:
                raise
            except Exception:
                log.exception("request failed: %s %s", request.method, request.path)
                await response.write(encode_lines([Failed(message="the request failed; see the node's log")]))
            await response.write_eof()
    return response


async def _prepared(request: web.Request, content_type: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-store"})
    await response.prepare(request)
    return response


@contextlib.asynccontextmanager
async def _closed(lines: AsyncIterator[object]) -> AsyncIterator[None]:
    """Close an iterator at the end, so that its resources are released now and not by the garbage collector."""
    try:
        yield
    finally:
        close = getattr(lines, "aclose", None)
        if close is not None:
            await close()
