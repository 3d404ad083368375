"""Log classes: topics whose records are kept for longer or shorter than the rest.

A class has a column family of its own in each shard, so that its retention is one growing range of keys as well. A record's topic
decides its class when it is written; filters of two classes must not overlap, so that every topic has exactly one. Class 0 is the
log itself, with all topics that no class names.

The settings of a class are stored with the log, one row for each in the default family:

    "class:" | name     version (1) = 1, MessagePack of [topics that it ever had, age in microseconds, bytes or nil,
                        topics that it has or nil]

- All topics that it ever had: a reader searches a class for everything that may ever have been written there.
- Its retention: a class that is no longer configured gets no new records and keeps its last retention until it is empty. Until
  then its records stay readable.
- Its current topics, sorted: those by which records are written. When they change, a topic may move to another family; then all
  open epochs are closed, in one batch with this field. So of two epochs with records of one topic the one that begins earlier
  has the earlier records, whatever their families: readers that go epoch by epoch rely on it. If the field is nil or missing
  (rows of early versions), it counts as changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec
from msgspec import structs

from braidmq.base.config.settings import HistorySettings
from braidmq.base.errors import ConfigError, Corruption, ProtocolViolation, UsageError
from braidmq.base.units import parse_bytes
from braidmq.lane.records.records import TopicFilters
from braidmq.mqtt.topics import check_filter, overlaps
from braidmq.storage.upkeep.retention import LogRetention

CLASS_PREFIX: Final = b"class:"
CLASSES_END: Final = b"class;"

_VERSION: Final = 1
# The number of topics whose class is cached.
_REMEMBERED_MAX: Final = 32_768


class ClassRow(msgspec.Struct, frozen=True, array_like=True):
    """The stored row of a class."""

    topics: tuple[str, ...]
    age_us: int
    size_bytes: int | None
    current: tuple[str, ...] | None = None


class LogClass(msgspec.Struct, frozen=True):
    """A class of an open log; without topics if it is no longer configured.

    `current` in its row are the topics by which records were written so far, until `settled` is on disk.
    """

    name: str
    topics: tuple[str, ...]
    row: ClassRow

    @property
    def settled(self) -> ClassRow:
        """Its row once records are written by its current topics."""
        return structs.replace(self.row, current=tuple(sorted(set(self.topics))))

    def retention(self, pin_times: int) -> LogRetention:
        """How long its records stay."""
        return LogRetention(self.row.age_us, self.row.size_bytes, pin_times)


def retention_bytes(key: str, text: str) -> int | None:
    """The limit of a configuration key, None if it is empty; raises ConfigError."""
    if not text:
        return None
    try:
        return int(parse_bytes(text))
    except ValueError:
        raise ConfigError(key, f"{text!r} is not a size", 'write bytes or a unit: "500MiB", "20GiB"') from None


def check_classes(settings: HistorySettings) -> None:
    """Raise ConfigError if a filter of a class is invalid, or two classes match the same topic."""
    for name, each in settings.classes.items():
        for topic_filter in each.topics:
            try:
                check_filter(topic_filter)
            except ProtocolViolation as problem:
                raise ConfigError(f"history.classes.{name}.topics", f"{topic_filter!r}: {problem.detail}") from None
            if topic_filter.startswith(("$share/", "$exclusive/")):
                raise ConfigError(
                    f"history.classes.{name}.topics", f"{topic_filter!r} is a special subscription, not a topic filter"
                )
    for (name, one), (other_name, other) in combinations(settings.classes.items(), 2):
        for a in one.topics:
            for b in other.topics:
                if overlaps(a, b):
                    raise ConfigError(
                        f"history.classes.{other_name}.topics",
                        f"{b!r} and {a!r} of the class {name!r} match the same topics",
                        "a topic can belong to only one class: make one of the filters narrower",
                    )


def merge_classes(settings: HistorySettings, rows: Mapping[str, ClassRow]) -> list[LogClass]:
    """The configured and the former classes, by name, with the rows to store."""
    found = []
    for name in sorted(settings.classes.keys() | rows.keys()):
        row = rows.get(name)
        wanted = settings.classes.get(name)
        if wanted is None:
            assert row is not None
            found.append(LogClass(name, (), row))
            continue
        size_bytes = retention_bytes(f"history.classes.{name}.retention_bytes", wanted.retention_bytes)
        ever = tuple(sorted({*wanted.topics, *(row.topics if row is not None else ())}))
        current = row.current if row is not None else None
        found.append(LogClass(name, wanted.topics, ClassRow(ever, round(wanted.retention * 1_000_000), size_bytes, current)))
    return found


def encode_class(row: ClassRow) -> bytes:
    """The value of a class's row."""
    return bytes([_VERSION]) + msgspec.msgpack.encode(row)


def decode_class(value: bytes) -> ClassRow:
    """The row of a value; raises UsageError for a newer format, Corruption for an invalid row."""
    if value and value[0] > _VERSION:
        raise UsageError(
            f"the row of a class has the format {value[0]}, newer than {_VERSION}", "use the newer version of braidmq"
        )
    try:
        return msgspec.msgpack.decode(value[1:], type=ClassRow)
    except msgspec.DecodeError as problem:
        raise Corruption(f"the row of a class cannot be read: {problem}") from None


class ClassTable:
    """The class of each topic, by number: 0, or one more than its index in `classes`."""

    def __init__(self, classes: Sequence[LogClass] = ()) -> None:
        self.classes = tuple(classes)
        self._filters = [TopicFilters([topic.encode() for topic in each.topics], True) for each in self.classes]
        self._known: dict[bytes, int] = {}

    def __len__(self) -> int:
        """The number of classes, including the log itself."""
        return len(self.classes) + 1

    def class_of(self, topic: bytes) -> int:
        """The class that a record of this topic is written into."""
        found = self._known.get(topic)
        if found is None:
            hits = (number for number, filters in enumerate(self._filters, start=1) if filters.matches_topic(topic))
            found = next(hits, 0)
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            self._known[topic] = found
        return found

    def runs(self, topics: Iterable[bytes]) -> Iterator[tuple[int, int, int]]:
        """Runs of adjacent topics of one class, as class, first and end."""
        first = number = 0
        current: int | None = None
        for number, topic in enumerate(topics):
            found = self.class_of(topic)
            if found != current:
                if current is not None:
                    yield current, first, number
                current, first = found, number
        if current is not None:
            yield current, first, number + 1

    def may_hold(self, number: int, filters: Sequence[str]) -> bool:
        """Whether a class may have records that match one of the filters. The log itself always may."""
        if number == 0:
            return True
        ever = self.classes[number - 1].row.topics
        return any(overlaps(topic_filter, topic) for topic_filter in filters for topic in ever)
