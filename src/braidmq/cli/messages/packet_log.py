"""The output of ``-d``: one line on standard error per packet, in the wording of the Mosquitto clients."""

from __future__ import annotations

from collections.abc import Callable

import click

from braidmq.mqtt.packets import (
    Connack,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)


def packet_log(client_id: str) -> Callable[[str, Packet], None]:
    """A callback for ``MqttClient``; passwords never appear in it."""

    def tell(direction: str, packet: Packet) -> None:
        click.echo(f"Client {client_id} {direction} {type(packet).__name__.upper()}{_details(packet)}", err=True)

    return tell


def _details(packet: Packet) -> str:
    match packet:
        case Publish():
            flags = f"d{packet.dup:d}, q{packet.qos}, r{packet.retain:d}, m{packet.packet_id or 0}"
            return f" ({flags}, '{packet.topic}', ... ({len(packet.payload)} bytes))"
        case Connack():
            return f" ({packet.reason})"
        case Puback() | Pubrec() | Pubrel() | Pubcomp():
            return f" (Mid: {packet.packet_id}, RC:{packet.reason})"
        case Subscribe():
            filters = ", ".join(f"{each.topic_filter} (QoS {each.qos})" for each in packet.subscriptions)
            return f" (Mid: {packet.packet_id}, Topic: {filters})"
        case Unsubscribe():
            return f" (Mid: {packet.packet_id}, Topic: {', '.join(packet.topic_filters)})"
        case Suback() | Unsuback():
            return f" (Mid: {packet.packet_id}): {', '.join(map(str, packet.reasons))}"
        case _:
            return ""
