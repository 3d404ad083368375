"""CONNACK of accepted clients: the shared part is encoded once, the client's own part is added."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from braidmq.base.config.settings import MqttSettings
from braidmq.broker.connection.connection import Connection
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.session.storage import SessionStorage
from braidmq.mqtt import codec
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, Connack, Connect
from braidmq.mqtt.properties import Properties


class ConnackFrames:
    """CONNACK as most clients get it, encoded once for each configuration; what is at the protocol's default is left out."""

    def __init__(self, settings: MqttSettings) -> None:
        self.capabilities = Properties(
            receive_maximum=settings.receive_maximum,
            maximum_packet_size=settings.packet_bytes_max,
            topic_alias_maximum=settings.topic_alias_maximum or None,
        )
        self._frames = {
            (version, is_present): codec.encode(Connack(0, is_present, self.capabilities), version)
            for version in (MQTT31, MQTT311, MQTT5)
            for is_present in (False, True)
        }

    def plain(self, version: int, is_present: bool) -> bytes:
        """The CONNACK of a client without properties of its own."""
        return self._frames[version, is_present]


class ConnackWriter:
    """Accepts clients; ``reconfigure`` follows a change of the settings."""

    def __init__(self, session_storage: SessionStorage, live: LiveSettings) -> None:
        self._session_storage = session_storage
        self._live = live
        self.reconfigure()

    def reconfigure(self) -> None:
        """The settings that CONNACK reports may have changed."""
        self._frames = ConnackFrames(self._live.now.mqtt)

    def send(
        self,
        connection: Connection,
        packet: Connect,
        keep_alive: int,
        data: bytes,
        told: tuple[tuple[str, str], ...],
        is_present: bool,
    ) -> bool:
        """Accept the connection; False if the client takes no packet that large."""
        frames = self._frames
        more = self._particulars(connection, packet, keep_alive, data, told) if connection.is_v5 else None
        if more:
            return connection.send_packet(Connack(0, is_present, replace(frames.capabilities, **more)))
        return connection.send_frame("connack", frames.plain(connection.version, is_present))

    def _particulars(
        self, connection: Connection, packet: Connect, keep_alive: int, data: bytes, told: tuple[tuple[str, str], ...]
    ) -> dict[str, Any]:
        """The properties of CONNACK for this MQTT 5 client alone."""
        asked = packet.properties
        session = connection.session
        more: dict[str, Any] = {}
        expiry_s = session.expiry_s if session is not None else 0
        if expiry_s != (asked.session_expiry_interval or 0):
            more["session_expiry_interval"] = expiry_s
        if not packet.client_id:
            more["assigned_client_identifier"] = connection.client_id
        if keep_alive != packet.keep_alive:
            more["server_keep_alive"] = keep_alive
        if asked.request_response_information == 1 and (prefix := self._live.now.mqtt.response_topic_prefix):
            more["response_information"] = f"{prefix}{connection.client_id}/"
        if asked.authentication_method is not None:
            more["authentication_method"] = asked.authentication_method
            more["authentication_data"] = data or None
        gap = self._session_storage.gap_of(session) if session is not None else ""
        if gap or told:
            more["user_properties"] = (("session-gap", gap), *told) if gap else told
        return more
