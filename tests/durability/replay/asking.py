"""A client that looks back, and what it is shown."""

from __future__ import annotations

from typing import TypeVar

from braidmq.broker.messages.hooks import Hook
from braidmq.lane.path.message import Message
from braidmq.mqtt.codec import decode
from braidmq.mqtt.packets import (
    MQTT5,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
)
from tests.durability.campaigns.node import client
from tests.support.clients.wire import Frame, Wire
from tests.support.stage import Stage

AnyPacket = TypeVar("AnyPacket", bound=Packet)


class Censor(Hook):
    """Lets nobody have a message with an odd number."""

    def deliver(self, message: Message, client_id: str) -> Message | None:
        """None for odd ones."""
        return None if int(message.payload) % 2 else message


def ask(start: str, *, end: bool = False, complete: bool = False) -> tuple[tuple[str, str], ...]:
    """The user properties of a SUBSCRIBE that looks back."""
    pairs = [("stream-offset", start)]
    if end:
        pairs.append(("replay-end", "1"))
    if complete:
        pairs.append(("replay-complete", "1"))
    return tuple(pairs)


def replay(wire: Wire, topic_filter: str, start: str = "earliest", *, qos: int = 1, end: bool = False) -> str:
    """Subscribe from this start on, in the way that the client's version has; gives the filter as it was written."""
    if wire.version == MQTT5:
        wire.subscribe(topic_filter, qos=qos, user_properties=ask(start, end=end))
        return topic_filter
    written = f"$replay/{start}{',end' if end else ''}/{topic_filter}"
    wire.subscribe(written, qos=qos)
    return written


def is_end(frame: Frame, written: str) -> bool:
    """Whether this is the end marker of a filter. Its topic may have wildcards, so it is not decoded as a message."""
    name = written.encode()
    return frame.first_byte == 0x30 and frame.body.startswith(len(name).to_bytes(2, "big") + name)


def read_to_end(wire: Wire, written: str, *, held: set[int] | None = None) -> list[Publish]:
    """Every message up to the end marker of this filter, each acknowledged; ``held`` as in ``read``."""
    found: list[Publish] = []
    while not is_end(frame := wire.receive_frame(), written):
        _take(wire, frame, found, held)
    return found


def read(wire: Wire, count: int, *, held: set[int] | None = None) -> list[Publish]:
    """So many messages, each acknowledged; the steps of their handshakes may come in any order.

    ``held`` is what a client keeps over connections: packet ids of QoS 2 messages that were not released. A repeat is no message.
    """
    found: list[Publish] = []
    while len(found) < count:
        _take(wire, wire.receive_frame(), found, held)
    return found


def amid(wire: Wire, packet: Packet, answer: type[AnyPacket], *before: Packet) -> tuple[list[Publish], AnyPacket]:
    """Send a packet, right after others, while messages come; gives those that come before the answer, and the answer."""
    found: list[Publish] = []
    wire.send(*before, packet)
    while not isinstance(came := decode((frame := wire.receive_frame()).first_byte, frame.body, wire.version), answer):
        _take(wire, frame, found)
    return found, came


def _take(wire: Wire, frame: Frame, found: list[Publish], held: set[int] | None = None) -> None:
    packet = decode(frame.first_byte, frame.body, wire.version)
    held = set() if held is None else held
    if isinstance(packet, Pubrel):
        held.discard(packet.packet_id)
        wire.send(Pubcomp(packet.packet_id))
        return
    assert isinstance(packet, Publish), packet
    if packet.packet_id not in held:
        found.append(packet)
    if packet.packet_id is not None:
        if packet.qos == 2:
            held.add(packet.packet_id)
        wire.send(Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id))


def bodies(messages: list[Publish]) -> list[bytes]:
    """Their payloads."""
    return [each.payload for each in messages]


def record(stage: Stage, topic: str, count: int, *, clients: int = 1, qos: int = 1, stem: bytes = b"") -> list[bytes]:
    """Let clients publish in turns, one message at a time; gives the payloads in that order."""
    wires = [stage.connect() for _ in range(clients)]
    sent = [stem + b"%05d" % number for number in range(count)]
    for number, payload in enumerate(sent):
        wires[number % clients].publish(topic, payload, qos)
    return sent


def refusal(suback: Suback) -> tuple[list[int], str]:
    """The reasons and the words of a SUBACK."""
    return suback.reasons, suback.properties.reason_string or ""


def publish_all(port: int, topic: str, payloads: list[bytes], qos: int = 1) -> None:
    """Publish, with the whole handshake of each."""
    with client(port) as publisher:
        if qos == 2:
            for payload in payloads:
                publisher.publish(topic, payload, qos)
            return
        publisher.send(*(Publish(topic, payload, 1, packet_id=number) for number, payload in enumerate(payloads, 1)))
        for _ in payloads:
            assert publisher.receive(Puback).reason < 0x80


def numbered(count: int, stem: bytes = b"") -> list[bytes]:
    """Payloads that tell themselves apart."""
    return [stem + b"%05d" % number for number in range(count)]


DAY_US = 86_400_000_000


def forget_first(stage: Stage, topic: str) -> tuple[int, list[bytes]]:
    """Record, and let retention take the first part; gives the time since when everything is there, and what is left."""
    record(stage, topic, 6, clients=5, stem=b"old")
    return forget(stage, topic)


def forget(stage: Stage, topic: str) -> tuple[int, list[bytes]]:
    """The same for what is recorded already."""
    node = stage.broker.node
    assert node is not None
    gone_until = stage.broker.call(lambda: max(node.log.watermarks.values()))
    stage.broker.call(lambda: node.log.add_generation("learned"))
    kept = record(stage, topic, 6, clients=5, stem=b"new")
    stage.broker.call(lambda: node.log.retain(gone_until + 1 + 7 * DAY_US))
    return gone_until + 1, kept
