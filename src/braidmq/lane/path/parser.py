"""Finds complete frames in a receive buffer and parses PUBLISH and acknowledgements in place.

This is the plain form and the contract; a build compiles ``parser.pyx`` to replace it. Both pass the same tests and agree with
the codec in ``mqtt``. Nothing is copied until one of the ``bytes`` methods is called, and their results stay valid after the
buffer is reused.
"""

from __future__ import annotations

NEED_MORE = 0
FRAME = 1
VIOLATION = -1

_MALFORMED = 0x81
_PROTOCOL_ERROR = 0x82
_TOPIC_NAME_INVALID = 0x90
_TOPIC_ALIAS_INVALID = 0x94
_PACKET_TOO_LARGE = 0x95
_TOPIC_BYTES_MAX = 65535  # the length has two bytes; a topic that the broker builds might be longer


def is_text(data: bytes) -> bool:
    """Whether ``data`` is UTF-8 without NUL or surrogates."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return 0 not in data


def topic_error(topic: bytes, levels_max: int) -> int:
    """0 if ``topic`` may be published to, else the reason code that says why not."""
    if not is_text(topic):
        return _MALFORMED
    if not 0 < len(topic) <= _TOPIC_BYTES_MAX or b"+" in topic or b"#" in topic or topic.count(b"/") >= levels_max:
        return _TOPIC_NAME_INVALID
    return 0


class Parser:
    """A cursor over the frames of one buffer. Its fields describe the frame that ``next`` found last."""

    __slots__ = (
        "_have", "_p", "alias", "alias_at", "body", "dup", "end", "error", "expiry", "expiry_at", "flags", "frame_max",
        "kind", "packet_id", "payload_at", "payload_format", "properties_at", "properties_bytes", "qos", "reason",
        "retain", "start", "topic_at", "topic_bytes",
    )  # fmt: skip

    def load(self, buffer: bytes | bytearray, have: int, frame_max: int) -> None:
        """Start at the front of ``buffer``, of which ``have`` bytes are filled; reject frames above ``frame_max``."""
        if not isinstance(buffer, bytes | bytearray):
            raise TypeError("a Parser reads bytes or bytearray")
        if have > len(buffer):
            raise ValueError("a Parser cannot read past its buffer")
        self._p = buffer
        self._have = have
        self.frame_max = frame_max
        self.start = self.end = 0

    def next(self) -> int:
        """FRAME if a whole one follows, NEED_MORE, or VIOLATION with ``error`` set. ``start`` is where it begins."""
        p = self._p
        k = self.start = self.end
        if self._have - k < 2:
            return NEED_MORE
        k += 1
        length = shift = 0
        while True:
            x = p[k]
            k += 1
            length |= (x & 127) << shift
            if not x & 128:
                break
            shift += 7
            if shift > 21:  # a fifth byte
                self.error = _MALFORMED
                return VIOLATION
            if k >= self._have:
                return NEED_MORE
        if shift and x == 0:  # [MQTT-1.5.5-1]: not the shortest form
            self.error = _MALFORMED
            return VIOLATION
        if k - self.start + length > self.frame_max:
            self.error = _PACKET_TOO_LARGE
            return VIOLATION
        self.kind = p[self.start] >> 4
        self.flags = p[self.start] & 15
        if self._have - k < length:
            return NEED_MORE
        self.body = k
        self.end = k + length
        return FRAME

    def parse_publish(self, v5: bool) -> int:
        """Parse a client's PUBLISH; returns 0 or the reason code. ``topic_error`` checks the topic itself."""
        p, k, end = self._p, self.body, self.end
        self.qos = (self.flags >> 1) & 3
        self.retain = bool(self.flags & 1)
        self.dup = bool(self.flags & 8)
        if self.qos == 3 or (self.dup and self.qos == 0):  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
            return _MALFORMED
        if end - k < 2:
            return _MALFORMED
        self.topic_bytes = p[k] << 8 | p[k + 1]
        self.topic_at = k + 2
        k += 2 + self.topic_bytes
        if k > end:
            return _MALFORMED
        self.packet_id = 0
        if self.qos:
            if end - k < 2:
                return _MALFORMED
            self.packet_id = p[k] << 8 | p[k + 1]
            k += 2
            if self.packet_id == 0:
                return _MALFORMED
        self.alias, self.alias_at, self.expiry_at, self.payload_format = 0, -1, -1, 0
        self.properties_at, self.properties_bytes = k, 0
        if v5:
            length = shift = 0
            while True:
                if k >= end or shift > 21:
                    return _MALFORMED
                x = p[k]
                k += 1
                length |= (x & 127) << shift
                shift += 7
                if not x & 128:
                    break
            if (shift > 7 and x == 0) or end - k < length:
                return _MALFORMED
            self.properties_at = k
            self.properties_bytes = length
            k += length
            code = self._parse_properties()
            if code:
                return code
        self.payload_at = k
        if self.topic_bytes == 0 and self.alias_at < 0:
            return _PROTOCOL_ERROR
        return 0

    def _parse_properties(self) -> int:
        p, k = self._p, self.properties_at
        end = k + self.properties_bytes
        seen = set()
        late = 0  # the reason code of an invalid value: errors of the format take precedence

        def text_end(at: int) -> int:
            """Where the length-prefixed field at ``at`` ends, or -1 if it is truncated."""
            if end - at < 2:
                return -1
            stop = at + 2 + (p[at] << 8 | p[at + 1])
            return stop if stop <= end else -1

        while k < end:
            identifier = p[k]
            k += 1
            if identifier == 0x26:  # user property: the only one that may repeat
                for _ in range(2):
                    stop = text_end(k)
                    if stop < 0 or not is_text(bytes(p[k + 2 : stop])):
                        return _MALFORMED
                    k = stop
                continue
            if identifier == 0x0B:  # [MQTT-3.3.4-6]: a client never sends subscription identifiers
                value = shift = 0
                while True:
                    if k >= end or shift > 21:
                        return _MALFORMED
                    x = p[k]
                    k += 1
                    value |= (x & 127) << shift
                    shift += 7
                    if not x & 128:
                        break
                if shift > 7 and x == 0:
                    return _MALFORMED
                if value == 0:
                    return _PROTOCOL_ERROR
                late = late or _PROTOCOL_ERROR
                continue
            match identifier:
                case 0x01:
                    if end - k < 1:
                        return _MALFORMED
                    if p[k] > 1:
                        return _PROTOCOL_ERROR
                    self.payload_format = p[k]
                    k += 1
                case 0x02:
                    if end - k < 4:
                        return _MALFORMED
                    self.expiry_at = k
                    self.expiry = int.from_bytes(p[k : k + 4], "big")
                    k += 4
                case 0x03 | 0x08 | 0x09:
                    stop = text_end(k)
                    if stop < 0:
                        return _MALFORMED
                    field = bytes(p[k + 2 : stop])
                    if identifier != 0x09 and not is_text(field):
                        return _MALFORMED
                    if identifier == 0x08 and topic_error(field, 65536):  # [MQTT-3.3.2-14]
                        late = _TOPIC_NAME_INVALID
                    k = stop
                case 0x23:
                    if end - k < 2:
                        return _MALFORMED
                    self.alias_at = k - 1
                    self.alias = p[k] << 8 | p[k + 1]
                    if self.alias == 0:  # [MQTT-3.3.2-8]
                        return _TOPIC_ALIAS_INVALID
                    k += 2
                case _:
                    return _MALFORMED
            if identifier in seen:
                return _PROTOCOL_ERROR
            seen.add(identifier)
        return late

    def parse_ack(self, v5: bool) -> int:
        """Parse PUBACK, PUBREC, PUBREL or PUBCOMP; returns 0, a reason code, or -1 if the codec must parse it."""
        p, n = self._p, self.end - self.body
        if self.flags != (2 if self.kind == 6 else 0):  # [MQTT-3.6.1-1]
            # Only MQTT 3.1 has a DUP flag on PUBREL: the codec knows the version.
            return -1 if self.kind == 6 and self.flags == 10 and not v5 else _MALFORMED
        if n < 2 or (n > 2 and not v5):
            return _MALFORMED
        self.packet_id = p[self.body] << 8 | p[self.body + 1]
        if self.packet_id == 0:
            return _MALFORMED
        self.reason = p[self.body + 2] if n > 2 else 0
        return 0 if n < 4 and self.reason == 0 else -1

    def topic_is(self, topic: bytes) -> bool:
        """Whether the PUBLISH is to ``topic``, which is not empty."""
        return bool(topic) and self._p[self.topic_at : self.topic_at + self.topic_bytes] == topic

    def topic(self) -> bytes:
        """The PUBLISH's topic."""
        return bytes(self._p[self.topic_at : self.topic_at + self.topic_bytes])

    def payload(self) -> bytes:
        """The PUBLISH's payload."""
        return bytes(self._p[self.payload_at : self.end])

    def properties(self) -> bytes:
        """The PUBLISH's properties as subscribers receive them: without their length and without the topic alias."""
        at, end = self.properties_at, self.properties_at + self.properties_bytes
        if self.properties_bytes == 0:
            return b""
        if self.alias_at < 0:
            return bytes(self._p[at:end])
        return bytes(self._p[at : self.alias_at] + self._p[self.alias_at + 3 : end])

    def expiry_offset(self) -> int:
        """Where the message expiry's value is in ``properties()``, or -1."""
        if self.expiry_at < 0:
            return -1
        return self.expiry_at - self.properties_at - (3 if 0 <= self.alias_at < self.expiry_at else 0)

    def frame(self) -> bytes:
        """The whole frame."""
        return bytes(self._p[self.start : self.end])

    def frame_body(self) -> bytes:
        """What follows the remaining length, for the codec."""
        return bytes(self._p[self.body : self.end])
