r"""How ``sub`` prints a message: the format strings of ``mosquitto_sub -F``.

``%`` introduces a field of the message (``%t`` topic, ``%p`` payload, ``%j`` all as JSON; with flags and widths as in ``%-20t``),
``@`` a letter for strftime (``@H``; ``@N`` for nanoseconds) and ``\`` a control character.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from braidmq.cli.errors import CommandFailed
from braidmq.mqtt.packets import Publish
from braidmq.mqtt.properties import NO_PROPERTIES

Part = Callable[[Publish, int], bytes]  # the message and the time it arrived, in nanoseconds since 1970

_PERCENT: Final = re.compile(r"%(?P<flags>[-0]*)(?P<width>\d{0,6})(?:\.(?P<most>\d{1,6}))?(?P<letter>.)", re.DOTALL)
_ESCAPES: Final = {"\\": "\\", "0": "\0", "a": "\a", "e": "\x1b", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ZERO_PADDED: Final = "AEFlmSxX"
_CUT: Final = "CIRt"


class NotJson(Exception):
    """The payload for ``%J`` is not JSON."""


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode()


def _iso(now_ns: int, fraction: bool = False) -> str:
    seconds, nanoseconds = divmod(now_ns, 1_000_000_000)
    at = time.localtime(seconds)
    micros = f".{nanoseconds // 1000:06d}" if fraction else ""
    return time.strftime("%Y-%m-%dT%H:%M:%S", at) + micros + time.strftime("%z", at)


def _as_json(message: Publish, now_ns: int, payload: object) -> bytes:
    properties = message.properties
    fields: dict[str, Any] = {
        "tst": _iso(now_ns, fraction=True),
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        fields["mid"] = message.packet_id
    if properties != NO_PROPERTIES:
        shown: dict[str, Any] = {
            "user-properties": dict(properties.user_properties),
            "content-type": properties.content_type,
            "correlation-data": properties.correlation_data and properties.correlation_data.decode("utf-8", "replace"),
            "response-topic": properties.response_topic,
            "payload-format-indicator": properties.payload_format_indicator,
            "message-expiry-interval": properties.message_expiry_interval,
            "subscription-identifiers": list(properties.subscription_identifiers),
        }
        fields["properties"] = {name: value for name, value in shown.items() if value not in (None, {}, [])}
    fields["payload"] = payload
    return msgspec.json.encode(fields)


def _json_quoted(message: Publish, now_ns: int) -> bytes:
    return _as_json(message, now_ns, message.payload.decode("utf-8", "replace"))


def _json_nested(message: Publish, now_ns: int) -> bytes:
    try:
        # Decoded only to validate it: the payload is printed unchanged.
        msgspec.json.decode(message.payload)
    except msgspec.DecodeError:
        raise NotJson(f"the payload is not valid JSON on topic {message.topic}") from None
    return _as_json(message, now_ns, msgspec.Raw(message.payload))


_LETTERS: Final[dict[str, Part]] = {
    "A": lambda message, _: _text(message.properties.topic_alias),
    "C": lambda message, _: _text(message.properties.content_type),
    "D": lambda message, _: message.properties.correlation_data or b"",
    "E": lambda message, _: _text(message.properties.message_expiry_interval),
    "F": lambda message, _: _text(message.properties.payload_format_indicator),
    "I": lambda _, now_ns: _text(_iso(now_ns)),
    "j": _json_quoted,
    "J": _json_nested,
    "l": lambda message, _: _text(len(message.payload)),
    "m": lambda message, _: _text(message.packet_id or 0),
    "P": lambda message, _: _text(" ".join(f"{key}:{value}" for key, value in message.properties.user_properties)),
    "p": lambda message, _: message.payload,
    "q": lambda message, _: _text(message.qos),
    "R": lambda message, _: _text(message.properties.response_topic),
    "r": lambda message, _: _text(int(message.retain)),
    "S": lambda message, _: _text(next(iter(message.properties.subscription_identifiers), None)),
    "t": lambda message, _: message.topic.encode(),
    "U": lambda _, now_ns: f"{now_ns // 1_000_000_000}.{now_ns % 1_000_000_000:09d}".encode(),
    "x": lambda message, _: message.payload.hex().encode(),
    "X": lambda message, _: message.payload.hex().upper().encode(),
}


def compile_format(text: str) -> Part:
    """A function that formats a message; raises CommandFailed for an unknown sequence."""
    parts: list[Part] = []
    at = 0
    while at < len(text):
        mark = text[at]
        if mark == "%":
            found = _PERCENT.match(text, at)
            if found is None:
                raise CommandFailed("-F: trailing %; write %% for a literal %")
            parts.append(_percent(found))
            at = found.end()
        elif mark == "@":
            parts.append(_strftime(text[at + 1 : at + 2]))
            at += 2
        elif mark == "\\":
            parts.append(_constant(_escape(text[at + 1 : at + 2])))
            at += 2
        else:
            end = next((index for index in range(at, len(text)) if text[index] in "%@\\"), len(text))
            parts.append(_constant(text[at:end]))
            at = end
    return lambda message, now_ns: b"".join([part(message, now_ns) for part in parts])


def _constant(text: str) -> Part:
    data = text.encode("utf-8", "surrogateescape")
    return lambda message, now_ns: data


def _escape(letter: str) -> str:
    if letter not in _ESCAPES or not letter:
        raise CommandFailed(f"-F: unknown escape '\\{letter}'; use one of {' '.join(chr(92) + each for each in _ESCAPES)}")
    return _ESCAPES[letter]


def _strftime(letter: str) -> Part:
    match letter:
        case "":
            raise CommandFailed("-F: trailing @; write @@ for a literal @")
        case "@":
            return _constant("@")
        case "N":
            return lambda _, now_ns: f"{now_ns % 1_000_000_000:09d}".encode()
        case _:
            return lambda _, now_ns: time.strftime(f"%{letter}", time.localtime(now_ns // 1_000_000_000)).encode()


def _percent(found: re.Match[str]) -> Part:
    letter = found["letter"]
    if letter == "%":
        return _constant("%")
    if letter not in _LETTERS:
        raise CommandFailed(f"-F: unknown sequence '{found[0]}'; use one of {' '.join('%' + each for each in _LETTERS)} and %%")
    write, width = _LETTERS[letter], int(found["width"] or 0)
    most = int(found["most"]) if found["most"] and letter in _CUT else None
    to_the_left = "-" in found["flags"]
    fill = b"0" if "0" in found["flags"] and letter in _ZERO_PADDED and not to_the_left else b" "
    if not width and most is None:
        return write

    def padded(message: Publish, now_ns: int) -> bytes:
        value = write(message, now_ns)
        value = value if most is None else value.decode()[:most].encode()
        return value.ljust(width, fill) if to_the_left else value.rjust(width, fill)

    return padded
