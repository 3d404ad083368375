"""Which web pages may open a WebSocket here.

A browser lets every page connect anywhere, and leaves it to the server to look at ``Origin`` (RFC 6455, section 10.2): without
that, any page that a user of this machine or network opens could speak MQTT with the broker. Other clients send no such header,
or name the broker itself.

On loopback the page has to be one of this machine. That ``Origin`` and ``Host`` agree proves nothing there: a name of the page's
own domain that points at 127.0.0.1 (DNS rebinding) stands in both.
"""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.base.config.addresses import is_loopback, parse_origin


class WebOrigins:
    """The ``origins`` of one listener."""

    __slots__ = ("_listed", "_takes_all")

    def __init__(self, listed: tuple[str, ...]) -> None:
        self._takes_all = "*" in listed
        self._listed = {parse_origin(each) for each in listed}

    def admits(self, origins: Sequence[str], hosts: Sequence[str], *, is_local: bool) -> bool:
        """Whether these ``Origin`` and ``Host`` headers are accepted. ``is_local``: all clients are on this machine."""
        if not origins or self._takes_all:
            return True
        origin = parse_origin(origins[0]) if len(origins) == 1 else None
        if origin is None:
            return False
        if self._listed:
            return origin in self._listed
        if is_local:
            return is_loopback(origin.host)
        # A Host without a port means the default port of the page's scheme, also where a proxy ends TLS.
        return len(hosts) == 1 and parse_origin(f"{origin.scheme}://{hosts[0]}") == origin
