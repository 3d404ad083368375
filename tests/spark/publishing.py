"""Messages for the log of a broker."""

from __future__ import annotations

from braidmq.mqtt.packets import Publish
from braidmq.testing import Broker
from tests.support.clients.wire import Wire

# As many as every broker takes at a time.
_AT_ONCE = 100


def publish(broker: Broker, topic: str, *payloads: bytes) -> None:
    """Publish from one client, and wait until everything is on disk."""
    with Wire(broker.host, broker.port).connect("device") as client:
        for first in range(0, len(payloads), _AT_ONCE):
            ids = {client.next_packet_id(): payload for payload in payloads[first : first + _AT_ONCE]}
            client.send(*(Publish(topic, payload, 1, packet_id=key) for key, payload in ids.items()))
            for packet_id in ids:
                client.finish_publish(1, packet_id)
