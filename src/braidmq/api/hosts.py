"""The host names that the HTTP listener accepts.

A web page can point a name of its own domain to 127.0.0.1 (DNS rebinding): the browser then takes the node for the page's own
server and lets the page read every response. ``Host`` shows that name, so on loopback it has to be one of this machine. A
request without the header is not from a browser.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from braidmq.api.answers import Handler, refusal
from braidmq.base.config.addresses import is_loopback, parse_origin

log = logging.getLogger("braidmq.api")

_LOGGED_CHARS_MAX: Final = 100


def is_known_host(hosts: Sequence[str], names: frozenset[str], *, is_local: bool) -> bool:
    """Whether to answer a request with these ``Host`` headers; ``names`` are configured, ``is_local``: bound to loopback."""
    if not hosts or not (names or is_local):
        return True
    asked = parse_origin(f"http://{hosts[0]}") if len(hosts) == 1 else None
    return asked is not None and (asked.host in names or is_loopback(asked.host))


def known_hosts(names: tuple[str, ...], *, is_local: bool) -> Middleware:
    """A middleware that rejects requests for any other host."""
    plain = frozenset(name.lower() for name in names)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = request.headers.getall("Host", ())
        if is_known_host(hosts, plain, is_local=is_local):
            return await handler(request)
        log.info("api: request for host %r rejected, see api.hosts", ", ".join(hosts)[:_LOGGED_CHARS_MAX])
        return refusal(403, "FORBIDDEN", "unknown host name; use localhost, or add the name to api.hosts")

    return check
