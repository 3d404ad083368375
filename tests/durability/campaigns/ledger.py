"""The record of a campaign: what was published, acknowledged and delivered; and the judge over it.

A message is known by its payload, ``publisher topic number filling``: numbers rise by one for each publisher and topic. The
judge is pure, so that it can be shown to find what it is there to find (``test_ledger.py``).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct, field

FILLING_MAX = 160
SHOWN_MAX = 5


class Arrival(NamedTuple):
    """A message as a reader was given it."""

    payload: bytes
    qos: int


class Published(Struct):
    """A message that a publisher has sent at least once."""

    qos: int
    is_acknowledged: bool = False  # PUBACK or PUBREC of success was received


class Reader(Struct):
    """A durable subscriber, or the log itself. Members of a group have one ``seen`` between them."""

    name: str
    qos: int  # of the subscription; 2 for the log
    arrivals: list[Arrival] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)

    def take(self, payload: bytes, qos: int) -> None:
        """The reader was given a message."""
        self.arrivals.append(Arrival(payload, qos))
        self.seen.add(payload)


def make_payload(publisher: str, topic: int, number: int) -> bytes:
    """The payload of a message; its filling follows from the rest, so that a damaged one is not known."""
    head = f"{publisher} {topic} {number} ".encode()
    digest = hashlib.sha256(head).hexdigest().encode()
    return head + (digest * 3)[: digest[0] * digest[1] % FILLING_MAX]


def stream_of(payload: bytes) -> tuple[tuple[bytes, bytes], int]:
    """Publisher and topic, within which order is kept, and the number."""
    publisher, topic, number, _ = payload.split(b" ", 3)
    return (publisher, topic), int(number)


class Ledger:
    """What happened in a campaign. ``violations``: what a client saw the broker do that the protocol forbids."""

    def __init__(self) -> None:
        self.published: dict[bytes, Published] = {}
        self.violations: list[str] = []

    def publish(self, payload: bytes, qos: int) -> None:
        """A message is about to be sent for the first time."""
        self.published[payload] = Published(qos)

    def acknowledge(self, payload: bytes) -> None:
        """The broker has taken over the message."""
        self.published[payload].is_acknowledged = True

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged."""
        return sum(each.is_acknowledged for each in self.published.values())

    def judge(self, reader: Reader) -> list[str]:
        """Everything that is wrong with what one reader was given, in words."""
        return [
            *self._strangers(reader),
            *self._missing(reader),
            *self._repeated(reader),
            *self._out_of_order(reader),
            *self._wrong_qos(reader),
        ]

    def judge_group(self, name: str, members: Sequence[Reader]) -> list[str]:
        """The same for readers that share one subscription; between members there is no order."""
        together = Reader(name, members[0].qos, [arrival for member in members for arrival in member.arrivals])
        return [*self._strangers(together), *self._missing(together), *self._repeated(together), *self._wrong_qos(together)]

    def _strangers(self, reader: Reader) -> list[str]:
        found = [arrival.payload for arrival in reader.arrivals if arrival.payload not in self.published]
        return _say(reader, "was given what nobody published", found)

    def _missing(self, reader: Reader) -> list[str]:
        seen = {arrival.payload for arrival in reader.arrivals}
        found = [payload for payload, each in self.published.items() if each.is_acknowledged and payload not in seen]
        return _say(reader, "lacks acknowledged messages", found)

    def _repeated(self, reader: Reader) -> list[str]:
        seen: set[bytes] = set()
        found = []
        for arrival in self._known(reader):
            if arrival.payload in seen and min(self.published[arrival.payload].qos, reader.qos) == 2:
                found.append(arrival.payload)
            seen.add(arrival.payload)
        return _say(reader, "was given QoS 2 messages twice", found)

    def _out_of_order(self, reader: Reader) -> list[str]:
        """QoS 1 may repeat what came before, never show for the first time what should have come before."""
        highest: dict[tuple[bytes, bytes], int] = {}
        seen: set[bytes] = set()
        found = []
        for arrival in self._known(reader):
            if arrival.payload not in seen:
                seen.add(arrival.payload)
                stream, number = stream_of(arrival.payload)
                if number < highest.get(stream, -1):
                    found.append(arrival.payload)
                highest[stream] = max(number, highest.get(stream, -1))
        return _say(reader, "was given messages out of order", found)

    def _wrong_qos(self, reader: Reader) -> list[str]:
        found = [each.payload for each in self._known(reader) if each.qos != min(self.published[each.payload].qos, reader.qos)]
        return _say(reader, "was given messages with another QoS than agreed", found)

    def _known(self, reader: Reader) -> Iterable[Arrival]:
        return (arrival for arrival in reader.arrivals if arrival.payload in self.published)


def summarise(lines: Iterable[str]) -> list[str]:
    """One line of each kind, lines that differ in their numbers alone being of one kind, and how many there are."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        kinds.setdefault(re.sub(r"\d+", "N", line), []).append(line)
    return [found[0] if len(found) == 1 else f"{found[0]} ({len(found)} such)" for found in kinds.values()]


def _say(reader: Reader, what: str, payloads: Sequence[bytes]) -> list[str]:
    if not payloads:
        return []
    shown = ", ".join(" ".join(payload.decode(errors="replace").split(" ")[:3]) for payload in payloads[:SHOWN_MAX])
    return [f"{reader.name} {what}: {len(payloads)}, such as {shown}"]
