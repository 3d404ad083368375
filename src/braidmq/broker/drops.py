"""The drop log: one line per dropped message, with client, topic and reason."""

from __future__ import annotations

import logging

from braidmq.broker.statistics import Statistics

log = logging.getLogger("braidmq.drops")


class DropLog:
    """Counts every drop by reason and, if asked to, writes a line for each; the log's own rate limit bounds those."""

    def __init__(self, statistics: Statistics, writes: bool) -> None:
        self._statistics = statistics
        self.writes = writes

    def __call__(self, reason: str, client_id: str, topic: bytes) -> None:
        """A message to ``topic`` was dropped on its way from or to a client."""
        self._statistics.drops[reason] += 1
        if self.writes:
            name = topic.decode()
            log.warning(
                "dropped (%s): client %s, topic %s", reason, client_id or "-", name,
                extra={"fields": {"reason": reason, "client_id": client_id, "topic": name}},
            )  # fmt: skip
