"""A connection that publishes as an idempotent producer: the bulk client plus the producer protocol.

`publisher` decides which rows to send, and what to do when the connection is lost.
"""

from __future__ import annotations

import ssl
from typing import Final

from msgspec import Struct

from braidmq.base.errors import UsageError
from braidmq.client.bulk import BulkClient, ConnectionLost
from braidmq.client.errors import is_passing, reason_in_words
from braidmq.mqtt.frames import FRAME_BYTES_MAX
from braidmq.mqtt.packet_types import PACKET_ID_MAX
from braidmq.mqtt.packets import MQTT5, Connack, Connect
from braidmq.mqtt.producer_protocol import CHECK, PARTS, SEQUENCE, SHARDS, read_check
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from braidmq.spark.sink.options import Server, WriteOptions

_KEEP_ALIVE_S: Final = 600


class TakenOver(UsageError):
    """Another attempt now publishes under the same client id; this one must stop."""


class LaterBatch(UsageError):
    """The broker has messages of a later batch of this producer; `sequence` belongs to it."""

    def __init__(self, detail: str, sequence: int) -> None:
        super().__init__(detail, "another query uses this producer name")
        self.sequence = sequence


class WrongShard(Exception):
    """The client id does not map to the shard of its producer name; `shards` is the number of shards."""

    def __init__(self, shards: int) -> None:
        super().__init__(shards)
        self.shards = shards


class Joined(Struct, frozen=True):
    """The contents of a CONNACK."""

    sequence: int  # everything up to it is settled
    check: int | None  # of the message with that sequence
    parts: int  # one more than the highest part of the producer seen for the batch
    receive_maximum: int
    packet_bytes_max: int


class ProducerClient(BulkClient):
    """An open connection of a producer."""

    @classmethod
    def dial(cls, server: Server, options: WriteOptions) -> ProducerClient:
        """Connect to a server, with TLS if its address says so. Raises ConnectionLost, or UsageError if a retry cannot help."""
        return cls.open(
            str(server),
            server.host,
            server.port,
            timeout_s=options.call_s,
            tls=_context(options) if server.tls else None,
            tls_name=options.server_name,
            trust_hint="name its authority with tls.caFile",
        )

    def join(self, client_id: str, user_properties: dict[str, str], options: WriteOptions) -> Joined:
        """CONNECT as a producer; returns when the broker has settled messages of earlier connections.

        Raises ConnectionLost, WrongShard, LaterBatch, or UsageError if a retry cannot help.
        """
        login = Connect(
            client_id,
            MQTT5,
            True,
            _KEEP_ALIVE_S,
            options.user or None,
            options.password.encode() if options.user else None,
            properties=Properties(user_properties=tuple(user_properties.items())),
        )
        connack = self.log_in(login)
        told = dict(connack.properties.user_properties)
        if connack.reason:
            raise _refusal(connack, told, self.server)
        if SEQUENCE not in told:
            raise UsageError(
                f"{self.server} does not support numbered producers",
                "only braidmq, in this or a later version, can publish each row exactly once",
            )
        check = told.get(CHECK)
        return Joined(
            int(told[SEQUENCE]),
            read_check(check) if check is not None else None,
            int(told.get(PARTS, "0")),
            connack.properties.receive_maximum or PACKET_ID_MAX,
            connack.properties.maximum_packet_size or FRAME_BYTES_MAX,
        )


def _refusal(packet: Connack, told: dict[str, str], server: str) -> Exception:
    said = packet.properties.reason_string
    detail = f"{server} rejected the connection: {reason_in_words(packet.reason)}{f', {said}' if said else ''}"
    if packet.reason == Reason.CLIENT_IDENTIFIER_NOT_VALID and SHARDS in told:
        return WrongShard(int(told[SHARDS]))
    if SEQUENCE in told:
        return LaterBatch(detail, int(told[SEQUENCE]))
    if is_passing(packet.reason):
        return ConnectionLost(detail, packet.reason)
    hint = ""
    if packet.reason in (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED):
        hint = "check the options user and password, and the broker's log"
    return UsageError(detail, hint)


def _context(options: WriteOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca_file or None)
        if options.cert_file:
            context.load_cert_chain(options.cert_file, options.key_file)
    except OSError as problem:
        name = problem.filename or options.ca_file or options.cert_file
        raise UsageError(f"{name} cannot be used: {problem}", "the file must exist on every machine that writes") from None
    return context
