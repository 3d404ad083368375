"""What nodes tell each other of producers, in the words of the broker."""

from __future__ import annotations

from braidmq.broker.messages.producer_books import ProducerStart
from braidmq.mqtt.producer_protocol import Request
from braidmq.net.proto_v1_claims import ProducerGrant, ProducerRequest


def encode_request(request: Request | None) -> ProducerRequest | None:
    """What a client asks for as a producer, for its claim."""
    if request is None:
        return None
    return ProducerRequest(request.base, request.skip, request.stops, request.name, request.is_keyed, request.part)


def decode_request(sent: ProducerRequest | None) -> Request | None:
    """What a claim says of its client as a producer."""
    return None if sent is None else Request(sent.base, sent.skip, sent.stops, sent.name, sent.is_keyed, sent.part)


def encode_start(start: ProducerStart | None) -> ProducerGrant | None:
    """Where a producer begins, for its grant."""
    return None if start is None else ProducerGrant(start.name, start.sequence, list(start.told))


def decode_start(sent: ProducerGrant | None) -> ProducerStart | None:
    """Where a grant says that the producer begins."""
    return None if sent is None else ProducerStart(sent.name, sent.sequence, tuple(sent.told))
