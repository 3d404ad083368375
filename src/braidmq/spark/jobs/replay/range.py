"""The range of a replay, fixed at its start, so that a later run reads the same rows and resumes where this one ended.

By the next run a relative time would mean another moment, an open end would include more rows, and the start of the log might
have been deleted. The range ends with the last row counted. A row stored before that end but committed later would be an extra
row; Spark reads the rows for publishing some time after counting them, when such commits are done.
"""

from __future__ import annotations

import json
import shlex
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from braidmq.flight import wire
from braidmq.flight.client import HistoryClient
from braidmq.flight.times import to_bound
from braidmq.spark.jobs.framework.job import bound
from braidmq.spark.source.offsets import begin_at

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Before all records, but not `earliest`: a read that starts at a time is told about deleted records.
_BEFORE_ALL_US: Final = 86_400_000_000


class ReplayRange(msgspec.Struct, frozen=True):
    """The start and end of a replay, in the format of `--from` and `--to`."""

    start: str
    end: str

    def until(self, last_us: int) -> ReplayRange:
        """The same range, ending with what was stored at this time."""
        return ReplayRange(self.start, _written(last_us + 1))

    def options(self) -> dict[str, str]:
        """The range as options of `format("braidmq")`."""
        return bound("starting", self.start) | bound("ending", self.end)

    def words(self) -> str:
        """The range for a command line."""
        return shlex.join(["--from", self.start, "--to", self.end])


def settle(start: str, end: str, client: HistoryClient | None) -> ReplayRange:
    """A range that means the same whenever it is read, except for an open end; raises UsageError for an invalid one.

    `client` is a client of the history to read; None for a table, from which nothing is deleted.
    """
    shards = None if client is None else client.shards()
    now = time.time_ns() // 1000 if shards is None else shards.now
    first = _settled(start, now) if shards is None or start != "earliest" else _beginning(shards)
    return ReplayRange(first, _settled(end, now))


def _settled(text: str, now: int) -> str:
    if text.startswith("{"):
        return text  # an offset
    parsed = to_bound(text, lambda: now)
    return text if parsed.time is None else _written(parsed.time)


def _beginning(shards: wire.Shards) -> str:
    """The current start of the log: a time if nothing was deleted, else an offset, since shards start at different times."""
    if not any(each.earliest or each.gone for each in shards.shards.values()):
        return _written(_BEFORE_ALL_US)
    return json.dumps(begin_at(wire.EARLIEST, shards).to_json(), separators=(",", ":"))


def _written(timestamp_us: int) -> str:
    return f"{_EPOCH + timedelta(microseconds=timestamp_us):%Y-%m-%dT%H:%M:%S.%fZ}"
