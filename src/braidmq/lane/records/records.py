"""Records of the log as bytes: build one, read fields without decoding all of it, assign timestamps and keys to many.

This is the plain form and the contract; a build compiles ``records.pyx`` to replace it. ``braidmq.storage.format.record``
describes the format.
"""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.base.errors import Corruption, UsageError

VERSION = 1
RETAIN, SESSION_ONLY, HAS_PUBLISHED_AT, HAS_EXPIRY, HAS_PROPERTIES = 4, 8, 16, 32, 64
_HEADER_BYTES = 6
# The bytes of a record's key without the topic index.
KEY_BYTES = 12
STATIC_ID_BYTES = 4
# A record is one value of the database and is copied as a whole, so MQTT's largest packet, 256 MiB, would be too much.
VALUE_BYTES_MAX = 64 * 1024 * 1024


def encode_record(
    topic: bytes,
    payload: bytes,
    qos: int,
    retain: bool,
    publisher: str,
    properties: bytes = b"",
    expires_at: int = 0,
    expiry_offset: int = -1,
    published_at: int = 0,
    session_only: bool = False,
) -> bytes:
    """The record's value; ``published_at`` 0 means the record's own timestamp, ``expires_at`` 0 means never.

    Raises ValueError if a field is out of range.
    """
    name = publisher.encode()
    if len(topic) > 0xFFFF or len(name) > 0xFFFF or not 0 <= qos <= 2 or expires_at < 0 or published_at < 0:
        raise ValueError("a field of a record is out of range")
    flags = qos | (RETAIN if retain else 0) | (SESSION_ONLY if session_only else 0)
    extras = b""
    if published_at:
        flags |= HAS_PUBLISHED_AT
        extras += published_at.to_bytes(8, "big")
    if expires_at:
        flags |= HAS_EXPIRY
        extras += expires_at.to_bytes(8, "big") + (expiry_offset & 0xFFFFFFFF).to_bytes(4, "big")
    if properties:
        flags |= HAS_PROPERTIES
        extras += len(properties).to_bytes(4, "big") + properties
    header = bytes((VERSION, flags)) + len(topic).to_bytes(2, "big") + len(name).to_bytes(2, "big")
    return b"".join((header, topic, name, extras, payload))


class Record:
    """One message of the log: its timestamp and its value, whose fields are decoded on access.

    Raises UsageError if a newer version wrote the value, Corruption if it is not a complete record.
    """

    __slots__ = ("timestamp", "value", "_topic_end", "_publisher_end", "_properties_at", "_payload_at")

    def __init__(self, timestamp: int, value: bytes) -> None:
        self.timestamp = timestamp
        self.value = value
        if value and value[0] > VERSION:
            raise UsageError(f"a record has format {value[0]}, newer than {VERSION}", "use the newer version of braidmq")
        if len(value) < _HEADER_BYTES or value[0] != VERSION or value[1] & 3 == 3 or value[1] & 0x80:
            raise Corruption(f"a record does not have format {VERSION}")
        flags = value[1]
        self._topic_end = _HEADER_BYTES + int.from_bytes(value[2:4], "big")
        self._publisher_end = self._topic_end + int.from_bytes(value[4:6], "big")
        self._properties_at = self._publisher_end + (8 if flags & HAS_PUBLISHED_AT else 0) + (12 if flags & HAS_EXPIRY else 0)
        self._payload_at = self._properties_at
        if flags & HAS_PROPERTIES:
            self._payload_at += 4 + int.from_bytes(value[self._properties_at : self._properties_at + 4], "big")
            self._properties_at += 4
        if self._payload_at > len(value) or self._properties_at > len(value):
            raise Corruption("a record is truncated")

    @property
    def topic(self) -> bytes:
        """The topic name."""
        return self.value[_HEADER_BYTES : self._topic_end]

    @property
    def publisher(self) -> str:
        """The publisher's client id; empty for the broker itself."""
        return self.value[self._topic_end : self._publisher_end].decode()

    @property
    def properties(self) -> bytes:
        """The forwardable properties in wire form."""
        return self.value[self._properties_at : self._payload_at]

    @property
    def payload(self) -> bytes:
        """The application message."""
        return self.value[self._payload_at :]

    @property
    def qos(self) -> int:
        """The QoS it was published with."""
        return self.value[1] & 3

    @property
    def retain(self) -> bool:
        """Whether it was published with RETAIN."""
        return bool(self.value[1] & RETAIN)

    @property
    def is_plain(self) -> bool:
        """Whether it never expires and is part of history."""
        return not self.value[1] & (SESSION_ONLY | HAS_EXPIRY)

    @property
    def session_only(self) -> bool:
        """Whether it was recorded only for durable sessions and is hidden from history."""
        return bool(self.value[1] & SESSION_ONLY)

    @property
    def published_at(self) -> int:
        """When it was published, in microseconds since 1970."""
        if not self.value[1] & HAS_PUBLISHED_AT:
            return self.timestamp
        return int.from_bytes(self.value[self._publisher_end : self._publisher_end + 8], "big")

    @property
    def expires_at(self) -> int:
        """When it expires by the wall clock, in microseconds since 1970; 0: never."""
        at = self._expiry_at()
        return int.from_bytes(self.value[at : at + 8], "big") if at else 0

    @property
    def expiry_offset(self) -> int:
        """Where the value of Message Expiry Interval is in the properties; -1: absent."""
        at = self._expiry_at()
        return int.from_bytes(self.value[at + 8 : at + 12], "big", signed=True) if at else -1

    def _expiry_at(self) -> int:
        flags = self.value[1]
        if not flags & HAS_EXPIRY:
            return 0
        return self._publisher_end + (8 if flags & HAS_PUBLISHED_AT else 0)


class TopicFilters:
    """Topic filters that match encoded records; filters and topics must be valid."""

    __slots__ = ("_everything", "_exact", "_wild", "_with_session_only")

    def __init__(self, filters: Sequence[bytes], with_session_only: bool) -> None:
        self._with_session_only = with_session_only
        self._everything = b"#" in filters
        self._exact = frozenset(each for each in filters if b"+" not in each and b"#" not in each)
        self._wild = [each for each in filters if b"+" in each or b"#" in each]

    def matches(self, value: bytes) -> bool:
        """Whether one of the filters matches the topic of the record with this value."""
        if value[1] & SESSION_ONLY and not self._with_session_only:
            return False
        return self.matches_topic(value[_HEADER_BYTES : _HEADER_BYTES + int.from_bytes(value[2:4], "big")])

    def matches_topic(self, topic: bytes) -> bool:
        """Whether one of the filters matches the topic."""
        if self._everything and topic[:1] != b"$":
            return True
        return topic in self._exact or any(_is_match(each, topic) for each in self._wild)


def _is_match(topic_filter: bytes, topic: bytes) -> bool:
    if topic[:1] == b"$" and topic_filter[:1] in (b"+", b"#"):
        return False  # [MQTT-4.7.2-1]
    wanted = topic_filter.split(b"/")
    levels = topic.split(b"/")
    if wanted[-1] == b"#":
        wanted.pop()
        levels_fit = len(levels) >= len(wanted)
    else:
        levels_fit = len(levels) == len(wanted)
    return levels_fit and all(want in (b"+", level) for want, level in zip(wanted, levels, strict=False))


def record_key(epoch: bytes, index: bytes, offset: int) -> bytes:
    """The key of a record: the epoch's eight bytes, the topic index, and the offset from the epoch's start."""
    return epoch + index + offset.to_bytes(4, "big")


def key_offset(key: bytes) -> int:
    """The offset from the epoch's start at the end of a record's key; raises Corruption if the key is invalid."""
    if len(key) < KEY_BYTES:
        raise Corruption("the key of a record is truncated")
    return int.from_bytes(key[-4:], "big")


def check_entries(entries: list[tuple[bytes, bytes]], value_bytes_max: int) -> None:
    """Raise ValueError if a topic is empty or too long or a value too large, and what `Record` raises for an invalid value."""
    for topic, value in entries:
        if not 0 < len(topic) <= 0xFFFF:
            raise ValueError(f"a topic of {len(topic)} bytes cannot be recorded")
        if len(value) > value_bytes_max:
            raise ValueError(f"a record of {len(value)} bytes is larger than {value_bytes_max}")
        Record(0, value)


def place(
    entries: list[tuple[bytes, bytes]],
    indexes: list[bytes],
    last: int,
    now: int,
    epoch_start: int,
    epoch_end: int,
    count_left: int,
    bytes_left: int,
    static_ids: set[bytes],
    rows: list[tuple[bytes, bytes]],
    records: list[Record],
    stamps: list[int],
) -> int:
    """Stamp the entries from number ``len(rows)`` on and append their rows, records and stamps, as many as fit the epoch.

    A stamp is ``now``, but at least one more than the stamp before it, which is ``last`` for the first. The epoch takes at most
    ``count_left`` entries and ``bytes_left`` bytes, with stamps before ``epoch_end``. Returns the bytes used. The entries must
    have passed `check_entries`.
    """
    prefix = epoch_start.to_bytes(8, "big")
    used = 0
    for number in range(len(rows), min(len(entries), len(rows) + count_left)):
        value, index = entries[number][1], indexes[number]
        stamp = now if now > last else last + 1
        cost = KEY_BYTES + len(index) + len(value)
        if stamp >= epoch_end or used + cost > bytes_left:
            break
        records.append(Record(stamp, value))
        stamps.append(stamp)
        rows.append((record_key(prefix, index, stamp - epoch_start), value))
        static_ids.add(index[:STATIC_ID_BYTES])
        last = stamp
        used += cost
    return used
