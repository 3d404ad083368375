"""Verdicts of access rules that a channel remembers, by topic, within a bound in topics and in bytes."""

from __future__ import annotations

_COUNT_MAX, _BYTES_MAX = 1024, 128 * 1024


class Verdicts:
    """Whether a client may publish to a topic, as far as it was asked. Beyond the bound it starts again from nothing."""

    __slots__ = ("_bytes", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, bool] = {}
        self._bytes = 0

    def put(self, topic: bytes, verdict: bool) -> None:
        """Remember a verdict."""
        if len(self.known) >= _COUNT_MAX or self._bytes >= _BYTES_MAX:
            self.known = {}
            self._bytes = 0
        self.known[topic] = verdict
        self._bytes += len(topic)
