"""Records as columns in the memory layout of Arrow: filtered and taken apart in one pass over what an iterator of a store gives.

This is the plain form and the contract; ``columns.pyx`` is the compiled one, and a build puts it in this module's place. Nothing
here knows Arrow's library: a column is a list of buffers, in the order and form that Arrow's specification gives them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from braidmq.base.errors import Corruption
from braidmq.lane.records import KEY_BYTES, Record, TopicFilters
from braidmq.lane.scan import ENDED, FAR, PAUSED

if TYPE_CHECKING:
    from braidmq.lane.scan import Query

# Besides what `Matches.collect` says of the place where it stopped.
RAN_OUT = 3

# The columns that can be asked for; their buffers in order, each a bytes-like object. `validity` is None without nulls.
#   numbers, flags                     validity, values (int32, int64, or bits for flags)
#   texts, binaries                    validity, offsets (int32), bytes
#   user_properties, lists of pairs    validity, offsets, offsets and bytes of the names, offsets and bytes of the values
# Of them `position` is the record's timestamp, and `size` the bytes of its key and value.
NUMBERS = ("qos", "publish_timestamp", "payload_format", "expires_at", "position", "size")
FLAGS = ("retain",)
TEXTS = ("topic", "client_id", "content_type", "response_topic")
BINARIES = ("payload", "correlation_data")
NAMES = (*NUMBERS, *FLAGS, *TEXTS, *BINARIES, "user_properties")

_PROPERTIES = ("payload_format", "content_type", "response_topic", "correlation_data", "user_properties")
NARROW = ("qos", "payload_format", "size")  # of 32 bits
# A seek costs about as much as this many steps.
_NEAR = 32

# Number of nulls, and the buffers.
Column = tuple[int, list[bytes | None]]


class Columns:
    """The wanted columns of records, in the order in which they were found; `size_bytes` is that of their keys and values.

    After an exception it is of no use any more.
    """

    __slots__ = ("size_bytes", "_rows", "_values", "_wants_properties")

    def __init__(self, wanted: Sequence[str]) -> None:
        unknown = set(wanted) - set(NAMES)
        if unknown:
            raise ValueError(f"no columns {sorted(unknown)}")
        self._wants_properties = any(name in wanted for name in _PROPERTIES)
        self._values: dict[str, list[Any]] = {name: [] for name in wanted}
        self._rows = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._rows

    def collect(
        self,
        pairs: Iterator[tuple[bytes, bytes]],
        query: Query | None,
        filters: TopicFilters,
        excluded: TopicFilters | None,
        after: int,
        upto: int,
        rows_max: int,
        bytes_max: int,
        steps_max: int,
    ) -> tuple[int, bytes]:
        """Append what is wanted of an epoch's pairs, until there are so many rows or bytes, or so many pairs were looked at.

        Wanted is what the query's index and the filters allow, `excluded` does not match, and is in (after, upto]. No query
        allows every index. Returns ENDED if the query says so, FAR with the topic index where the next match can be, or else
        PAUSED or, if there were no more pairs, RAN_OUT, both with the last key looked at, if any. Raises Corruption or UsageError
        at a record that cannot be read.
        """
        key = seen = target = b""
        passed = 0
        for _ in range(steps_max):
            if self._rows >= rows_max or self.size_bytes >= bytes_max:
                break
            pair = next(pairs, None)
            if pair is None:
                return RAN_OUT, key
            key, value = pair
            if len(key) < KEY_BYTES:
                raise Corruption("the key of a record is cut short")
            if query is not None:
                index = key[8:-4]
                if index < target:
                    passed += 1
                    if passed >= _NEAR:
                        return FAR, target
                    continue
                if index != seen:
                    if not query.matches(index):
                        found = query.ratchet(index)
                        if found is None:
                            return ENDED, b""
                        target, passed = found, 0
                        continue
                    seen = index
            timestamp = int.from_bytes(key[:8], "big") + int.from_bytes(key[-4:], "big")
            if after < timestamp <= upto:
                record = Record(timestamp, value)
                if filters.matches(value) and (excluded is None or not excluded.matches_topic(record.topic)):
                    self._add(record, len(key) + len(value))
        return (FAR, target) if query is not None and key[8:-4] < target else (PAUSED, key)

    def take(self) -> dict[str, Column]:
        """The columns by name, and begin anew. Raises Corruption for a text that is not UTF-8."""
        taken = {name: _column(name, values) for name, values in self._values.items()}
        for values in self._values.values():
            values.clear()
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
        for name, values in self._values.items():
            values.append(row.get(name))
        self._rows += 1
        self.size_bytes += size


def _publisher(value: bytes) -> bytes:
    """As it is in the record; `Record.publisher` would raise if it were no text."""
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
            raise Corruption(f"a record has a property 0x{identifier:02X}, which no message has")
    if at > len(data):
        raise Corruption("the properties of a record are cut short")
    if pairs:
        found["user_properties"] = pairs
    return found


def _text(data: bytes, at: int) -> bytes:
    return _piece(data, at + 2, int.from_bytes(_piece(data, at, 2), "big"))


def _piece(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise Corruption("the properties of a record are cut short")
    return data[at : at + size]


def _column(name: str, values: Sequence[Any]) -> Column:
    nulls = values.count(None)
    validity = _bits([value is not None for value in values]) if nulls else None
    if name in FLAGS:
        return nulls, [validity, _bits(values)]
    if name in NUMBERS:
        return nulls, [validity, array("i" if name in NARROW else "q", [value or 0 for value in values]).tobytes()]
    if name in TEXTS or name in BINARIES:
        return nulls, [validity, *_variable(values, name in TEXTS)]
    pairs = [pair for value in values for pair in value or ()]
    ends = accumulate((len(value or ()) for value in values), initial=0)
    names, texts = _variable([key for key, _ in pairs], True), _variable([value for _, value in pairs], True)
    return nulls, [validity, array("i", ends).tobytes(), *names, *texts]


def _variable(values: Sequence[bytes | None], is_text: bool) -> tuple[bytes, bytes]:
    found = [value or b"" for value in values]
    if is_text:
        for value in found:
            try:
                value.decode()
            except UnicodeDecodeError:
                raise Corruption("a text in a record is not UTF-8") from None
    return array("i", accumulate(map(len, found), initial=0)).tobytes(), b"".join(found)


def _bits(flags: Sequence[bool]) -> bytes:
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return number.to_bytes((len(flags) + 7) // 8, "little")
