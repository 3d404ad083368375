"""MQTT packets built byte by byte, for what a correct encoder would refuse to make."""

from __future__ import annotations

from braidmq.mqtt.packets import MQTT5


def u8(number: int) -> bytes:
    """One byte."""
    return bytes([number])


def u16(number: int) -> bytes:
    """A two byte integer."""
    return number.to_bytes(2, "big")


def varint(number: int) -> bytes:
    """A variable byte integer in its shortest form."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def text(content: str | bytes) -> bytes:
    """A string or binary field with its two byte length; bytes go in unchecked."""
    data = content.encode() if isinstance(content, str) else content
    return u16(len(data)) + data


def frame(first_byte: int, *parts: bytes) -> bytes:
    """A whole packet."""
    body = b"".join(parts)
    return u8(first_byte) + varint(len(body)) + body


def properties(version: int, *parts: bytes) -> bytes:
    """A property section, which MQTT 3.1.1 does not have."""
    content = b"".join(parts)
    return varint(len(content)) + content if version == MQTT5 else b""


def connect(
    version: int,
    *,
    name: bytes = b"MQTT",
    level: int | None = None,
    flags: int = 0x02,
    client_id: str | bytes = b"raw",
    props: bytes = b"",
    rest: bytes = b"",
) -> bytes:
    """CONNECT; ``rest`` is the payload after the client id (will, user name, password), ``props`` the properties' content."""
    head = text(name) + u8(version if level is None else level) + u8(flags) + u16(60)
    return frame(0x10, head, properties(version, props), text(client_id), rest)


def will(version: int, topic: str | bytes, payload: bytes, props: bytes = b"") -> bytes:
    """The will's fields in the payload of a CONNECT."""
    return properties(version, props) + text(topic) + text(payload)


def publish(
    version: int, topic: str | bytes, payload: bytes = b"", *, flags: int = 0, packet_id: int | None = None, props: bytes = b""
) -> bytes:
    """PUBLISH; ``flags`` is the low nibble of the first byte."""
    identifier = b"" if packet_id is None else u16(packet_id)
    return frame(0x30 | flags, text(topic), identifier, properties(version, props), payload)


def subscribe(version: int, *filters: tuple[str | bytes, int], packet_id: int = 1, props: bytes = b"", flags: int = 2) -> bytes:
    """SUBSCRIBE of (filter, options byte) pairs."""
    body = b"".join(text(topic_filter) + u8(options) for topic_filter, options in filters)
    return frame(0x80 | flags, u16(packet_id), properties(version, props), body)


def unsubscribe(version: int, *filters: str | bytes, packet_id: int = 1, props: bytes = b"", flags: int = 2) -> bytes:
    """UNSUBSCRIBE."""
    return frame(0xA0 | flags, u16(packet_id), properties(version, props), b"".join(text(f) for f in filters))


def connack_code(data: bytes) -> int | None:
    """The code of the one CONNACK that these bytes are, in the form of either version; None for no bytes at all."""
    if not data:
        return None
    assert data[0] == 0x20
    assert data[1] == len(data) - 2, f"more than a CONNACK: {data!r}"
    assert data[2] == 0, "a refusal with a session"
    return data[3]
