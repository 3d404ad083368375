"""Records as columns in the memory layout of Arrow: filtered and decoded in one pass over a store's iterator.

This is the plain form and the contract; a build compiles ``columns.pyx`` to replace it. Nothing here depends on Arrow's library:
a column is a list of buffers, in the order and form of Arrow's specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from braidmq.base.errors import Corruption
from braidmq.base.history_columns import Kind, sources
from braidmq.lane.records.arrow_buffers import Column, Flags, Numbers, Pairs, Variable
from braidmq.lane.records.records import KEY_BYTES, Record, TopicFilters
from braidmq.lane.records.seek import FAR, PAUSED, SKIP, TAKE, Seek

if TYPE_CHECKING:
    from braidmq.lane.records.arrow_buffers import Taken
    from braidmq.lane.records.seek import IndexQuery

# In addition to the results of `Matches.collect`.
RAN_OUT = 3

# The columns that can be selected; their buffers in order, each a bytes-like object. `validity` is None without nulls.
#   numbers, flags                     validity, values (int32, int64, or bits for flags)
#   texts, binaries                    validity, offsets (int32), bytes
#   user_properties, lists of pairs    validity, offsets, offsets and bytes of the names, offsets and bytes of the values
# `position` is the record's timestamp. `size`, the bytes of its key and value, is for planning and not a column of history.
NARROW = (*sources(Kind.INT32), "size")  # of 32 bits
NUMBERS = (*NARROW, *sources(Kind.INT64, Kind.TIME))
FLAGS = sources(Kind.FLAG)
TEXTS = sources(Kind.TEXT)
BINARIES = sources(Kind.BINARY)
PAIRS = sources(Kind.PAIRS)
NAMES = (*NUMBERS, *FLAGS, *TEXTS, *BINARIES, *PAIRS)

_PROPERTIES = ("payload_format", "content_type", "response_topic", "correlation_data", "user_properties")


class Columns:
    """The selected columns of records, in the order in which they were found; `size_bytes` is that of their keys and values.

    It must not be used after an exception.
    """

    __slots__ = ("size_bytes", "_rows", "_columns", "_wants_properties")

    def __init__(self, wanted: Sequence[str]) -> None:
        unknown = set(wanted) - set(NAMES)
        if unknown:
            raise ValueError(f"no columns {sorted(unknown)}")
        self._wants_properties = any(name in wanted for name in _PROPERTIES)
        self._columns = {name: _make_column(name) for name in wanted}
        self._rows = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._rows

    def collect(
        self,
        pairs: Iterator[tuple[bytes, bytes]],
        query: IndexQuery | None,
        filters: TopicFilters,
        excluded: TopicFilters | None,
        after: int,
        upto: int,
        rows_max: int,
        bytes_max: int,
        steps_max: int,
    ) -> tuple[int, bytes]:
        """Append the matching records of an epoch's pairs until a maximum of rows, bytes or examined pairs is reached.

        A record matches if the query's index and the filters allow it, `excluded` does not match it, and it is in (after, upto].
        Without a query every index matches. Returns ENDED if the query has no further matches, FAR with the topic index of the
        next possible match, PAUSED, or RAN_OUT if there were no more pairs, the last two with the last key examined, if any.
        Raises Corruption or UsageError at an unreadable record.
        """
        key = b""
        seek = None if query is None else Seek(query)
        for _ in range(steps_max):
            if self._rows >= rows_max or self.size_bytes >= bytes_max:
                break
            pair = next(pairs, None)
            if pair is None:
                return RAN_OUT, key
            key, value = pair
            if len(key) < KEY_BYTES:
                raise Corruption("the key of a record is truncated")
            if seek is not None:
                verdict = seek.examine(key[8:-4])
                if verdict == SKIP:
                    continue
                if verdict != TAKE:
                    return verdict, seek.target
            timestamp = int.from_bytes(key[:8], "big") + int.from_bytes(key[-4:], "big")
            if after < timestamp <= upto:
                record = Record(timestamp, value)
                if filters.matches(value) and (excluded is None or not excluded.matches_topic(record.topic)):
                    self._add(record, len(key) + len(value))
        return (FAR, seek.target) if seek is not None and seek.is_ahead(key[8:-4]) else (PAUSED, key)

    def take(self) -> dict[str, Taken]:
        """Return the columns by name and start again empty. Raises Corruption for text that is not UTF-8."""
        taken = {name: column.take(self._rows) for name, column in self._columns.items()}
        self._rows = self.size_bytes = 0
        return taken

    def _add(self, record: Record, size: int) -> None:
        row = {
            "topic": record.topic,
            "payload": record.payload,
            "qos": record.qos,
            "retain": record.retain,
            "client_id": _publisher(record.value),
            "publish_timestamp": record.published_at,
            "expires_at": record.expires_at or None,
            "position": record.timestamp,
            "size": size,
        }
        if self._wants_properties:
            row |= _read_properties(record.properties)
        for name, column in self._columns.items():
            value = row.get(name)
            if value is not None:
                column.append(self._rows, value)
        self._rows += 1
        self.size_bytes += size


def _make_column(name: str) -> Column:
    if name in PAIRS:
        return Pairs()
    if name in FLAGS:
        return Flags()
    if name in NUMBERS:
        return Numbers(4 if name in NARROW else 8)
    return Variable(name in TEXTS)


def _publisher(value: bytes) -> bytes:
    """The bytes in the record; `Record.publisher` would raise if they were not UTF-8."""
    begin = 6 + int.from_bytes(value[2:4], "big")
    return value[begin : begin + int.from_bytes(value[4:6], "big")]


def _read_properties(data: bytes) -> dict[str, object]:
    found: dict[str, object] = {}
    pairs: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(data):
        identifier = data[at]
        at += 1
        if identifier == 0x01:
            found["payload_format"] = _piece(data, at, 1)[0]
            at += 1
        elif identifier == 0x02:
            at += 4
        elif identifier == 0x23:
            at += 2
        elif identifier == 0x0B:
            while _piece(data, at, 1)[0] & 0x80:
                at += 1
            at += 1
        elif identifier in (0x03, 0x08, 0x09):
            name = {0x03: "content_type", 0x08: "response_topic", 0x09: "correlation_data"}[identifier]
            found[name] = value = _text(data, at)
            at += 2 + len(value)
        elif identifier == 0x26:
            key = _text(data, at)
            value = _text(data, at + 2 + len(key))
            pairs.append((key, value))
            at += 4 + len(key) + len(value)
        else:
            raise Corruption(f"a record has property 0x{identifier:02X}, which is not a property of messages")
    if at > len(data):
        raise Corruption("the properties of a record are truncated")
    if pairs:
        found["user_properties"] = pairs
    return found


def _text(data: bytes, at: int) -> bytes:
    return _piece(data, at + 2, int.from_bytes(_piece(data, at, 2), "big"))


def _piece(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise Corruption("the properties of a record are truncated")
    return data[at : at + size]
