"""The range of a replay, fixed at its start, so that a later run reads the same rows and resumes where this one ended.

A relative time is another one for the next run, an open end has more before it, and what the log begins with may be gone. The end
is that of the last row that is counted. What is stored up to then but committed later would be one row more: Spark reads rows
to publish them some time after it has counted them, when that is over.
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
from braidmq.flight.times import to_place
from braidmq.spark.jobs.framework.job import bound
from braidmq.spark.source.offsets import begin_at

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Before all records, and not the beginning, whatever that is: who begins at a time is told of what is gone.
_BEFORE_ALL_US: Final = 86_400_000_000


class ReplayRange(msgspec.Struct, frozen=True):
    """Where a replay begins and ends, as `--from` and `--to` are written."""

    start: str
    end: str

    def until(self, last_us: int) -> ReplayRange:
        """The same, but it ends with what was stored at this time."""
        return ReplayRange(self.start, _written(last_us + 1))

    def options(self) -> dict[str, str]:
        """The range as options of `format("braidmq")`."""
        return bound("starting", self.start) | bound("ending", self.end)

    def words(self) -> str:
        """The range for a command line."""
        return shlex.join(["--from", self.start, "--to", self.end])


def settle(start: str, end: str, client: HistoryClient | None) -> ReplayRange:
    """A range that means the same whenever it is read, but for an end that is open; raises UsageError for what is none.

    `client` is of the history that is read; None for a table, which keeps what it has.
    """
    shards = None if client is None else client.shards()
    now = time.time_ns() // 1000 if shards is None else shards.now
    first = _settled(start, now) if shards is None or start != "earliest" else _beginning(shards)
    return ReplayRange(first, _settled(end, now))


def _settled(text: str, now: int) -> str:
    if text.startswith("{"):
        return text  # an offset
    place = to_place(text, lambda: now)
    return text if place.time is None else _written(place.time)


def _beginning(shards: wire.Shards) -> str:
    """Where the log begins now. Nothing is gone: a time. Else an offset, as each shard begins elsewhere."""
    if not any(each.earliest or each.gone for each in shards.shards.values()):
        return _written(_BEFORE_ALL_US)
    return json.dumps(begin_at(wire.EARLIEST, shards).to_json(), separators=(",", ":"))


def _written(timestamp_us: int) -> str:
    return f"{_EPOCH + timedelta(microseconds=timestamp_us):%Y-%m-%dT%H:%M:%S.%fZ}"
