"""The plan of a benchmark, and the names of its clients and topics."""

from __future__ import annotations

import secrets
import socket
from typing import Literal

import msgspec

from braidmq.client.transport import Endpoint
from braidmq.mqtt.packets import MQTT5, Connect, Publish
from braidmq.mqtt.properties import NO_PROPERTIES, Properties

Kind = Literal["conn", "pub", "sub", "flow"]
Shape = Literal["pair", "fanout", "fanin"]


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run. Times are in seconds; ``limit``, ``inflight`` and ``duration_s`` of 0 mean no limit."""

    kind: Kind
    endpoint: Endpoint
    hosts: tuple[str, ...]
    local_addresses: tuple[str, ...] = ()
    version: int = MQTT5
    clients: int = 200
    first_number: int = 0
    connect_gap_s: float = 0.01
    keep_alive: int = 300
    clean_start: bool = True
    session_expiry: int = 0
    user_name: str | None = None
    password: bytes | None = None
    topic: str = ""
    qos: int = 0
    retain: bool = False
    size: int = 256
    message: bytes | None = None
    message_gap_s: float = 1.0
    limit: int = 0
    inflight: int = 1
    shape: Shape = "pair"
    subscribers: int = 0
    duration_s: float | None = None
    prefix: str = ""
    short_ids: bool = False
    run_id: str = ""

    def client_id(self, role: str, number: int) -> str:
        """The client id of the connection with this number."""
        if self.short_ids:
            return f"{self.prefix or self.run_id}{role[0] if self.kind == 'flow' else ''}{number}"
        if self.prefix:
            return f"{self.prefix}_bench_{role}_{number}"
        return f"{socket.gethostname()}_bench_{role}_{self.run_id}_{number}"

    def endpoint_for(self, number: int) -> Endpoint:
        """The endpoint of the connection with this number; hosts and local addresses are used in turn."""
        changes = {"host": self.hosts[number % len(self.hosts)]}
        if self.local_addresses:
            changes["bind_address"] = self.local_addresses[number % len(self.local_addresses)]
        return msgspec.structs.replace(self.endpoint, **changes)

    def login(self, role: str, number: int) -> Connect:
        """The CONNECT of the connection with this number."""
        expires = self.version == MQTT5 and self.session_expiry
        return Connect(
            client_id=self.client_id(role, number),
            version=self.version,
            clean_start=self.clean_start,
            keep_alive=self.keep_alive,
            user_name=self._fill(self.user_name, role, number) if self.user_name else None,
            password=self.password,
            properties=Properties(session_expiry_interval=self.session_expiry) if expires else NO_PROPERTIES,
        )

    def topic_of(self, role: str, number: int) -> str:
        """The topic or filter of the connection with this number: ``%i`` number, ``%c`` client id, ``%u`` user name."""
        return self._fill(self.topic, role, number)

    def message_of(self, role: str, number: int, payload: bytes) -> Publish:
        """The message that the connection with this number sends."""
        return Publish(self.topic_of(role, number), payload, self.qos, self.retain)

    def _fill(self, text: str, role: str, number: int) -> str:
        text = text.replace("%i", str(number)).replace("%c", self.client_id(role, number))
        return text.replace("%u", self.user_name or "")


def new_run_id() -> str:
    """A random id that distinguishes this run from others on the same broker."""
    return secrets.token_hex(3)
