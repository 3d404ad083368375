"""Every metric of a node: the stem of its name, whether it only rises, and what it says.

The stems are those that MQTT dashboards already know; Prometheus sees them with the prefix ``braidmq_``.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

PREFIX: Final = "braidmq_"


class MetricName(NamedTuple):
    """The type of a metric and its HELP text."""

    kind: Literal["counter", "gauge"]
    help: str


def _gauge(help: str) -> MetricName:
    return MetricName("gauge", help)


def _counter(help: str) -> MetricName:
    return MetricName("counter", help)


_STATE: Final = {
    "uptime_seconds": _gauge("Seconds since the node started."),
    "connections_count": _gauge("Connections and sessions waiting for their client."),
    "live_connections_count": _gauge("Clients connected now."),
    "sessions_count": _gauge("Sessions, with a connection or without."),
    "sessions_durable_count": _gauge("Sessions that outlive the process."),
    "topics_count": _gauge("Topic filters that have subscribers."),
    "subscriptions_count": _gauge("Subscriptions of all sessions, shared ones included."),
    "subscriptions_shared_count": _gauge("Shared subscriptions."),
    "retained_count": _gauge("Retained messages."),
    "retained_bytes": _gauge("Bytes of the payloads of retained messages."),
    "delayed_count": _gauge("Messages waiting for their delay to pass."),
    "bans_count": _gauge("Bans in force."),
    "queue_messages_count": _gauge("Messages waiting in the queues of sessions."),
    "queue_bytes_count": _gauge("Bytes waiting in the queues of sessions."),
    "inflight_count": _gauge("QoS 1 and 2 messages sent to clients and not yet acknowledged."),
    "cert_expiry_at": _gauge("When the first of the server certificates expires, in seconds since 1970."),
}

_TRAFFIC: Final = {
    "bytes_received": _counter("Bytes received from clients."),
    "bytes_sent": _counter("Bytes sent to clients."),
    "messages_received": _counter("Messages received from clients."),
    "messages_qos0_received": _counter("QoS 0 messages received from clients."),
    "messages_qos1_received": _counter("QoS 1 messages received from clients."),
    "messages_qos2_received": _counter("QoS 2 messages received from clients."),
    "messages_sent": _counter("Messages sent to clients."),
    "messages_qos0_sent": _counter("QoS 0 messages sent to clients."),
    "messages_qos1_sent": _counter("QoS 1 messages sent to clients."),
    "messages_qos2_sent": _counter("QoS 2 messages sent to clients."),
    "messages_publish": _counter("Messages published, by clients and by the node itself."),
    "messages_acked": _counter("QoS 1 and 2 messages that clients acknowledged."),
    "messages_delivered": _counter("Messages handed to subscribers."),
    "messages_retained": _counter("Retained messages stored."),
    "messages_delayed": _counter("Messages taken in for later delivery."),
}

_DROPS: Final = {
    "messages_dropped": _counter("Messages that were not passed on to anybody, whatever the reason."),
    "messages_dropped_no_subscribers": _counter("Messages dropped because nobody is subscribed."),
    "messages_dropped_not_authorized": _counter("Messages dropped because the client may not publish there."),
    "messages_dropped_receive_maximum": _counter(
        "Messages refused, with their connection, for being more than the receive maximum."
    ),
    "messages_dropped_reserved": _counter("Messages of clients to topics that are the node's own, such as $SYS."),
    "messages_dropped_payload_format": _counter("Messages refused because their payload is not the UTF-8 it says it is."),
    "messages_dropped_not_stored": _counter("Messages refused because the log could not store them."),
    "messages_dropped_hook": _counter("Messages that a hook refused."),
    "messages_dropped_retained_full": _counter(
        "Retained messages refused because the store is full or they are too large for it."
    ),
    "messages_dropped_delayed_full": _counter("Delayed messages refused because too many wait or the delay is too long."),
    "delivery_dropped": _counter("Deliveries to one subscriber that were dropped, whatever the reason."),
    "delivery_dropped_queue_full": _counter("Deliveries dropped because the queue of the session is full."),
    "delivery_dropped_expired": _counter("Deliveries dropped because the message expired in the queue."),
    "delivery_dropped_too_large": _counter("Deliveries dropped because the client accepts no packet as large."),
    "delivery_dropped_no_local": _counter("Deliveries left out because the subscriber published the message itself."),
    "delivery_dropped_qos0_msg": _counter("QoS 0 deliveries dropped because the client is absent."),
    "delivery_dropped_outbox_full": _counter("QoS 0 deliveries dropped because the client reads too slowly."),
    "delivery_dropped_not_authorized": _counter("Deliveries dropped because the client may no longer receive the topic."),
    "delivery_dropped_hook": _counter("Deliveries that a hook refused."),
    "delivery_dropped_session_ended": _counter("Deliveries lost with the queue of a session that ended."),
}

_ACKNOWLEDGEMENTS: Final = ("puback", "pubrec", "pubrel", "pubcomp")
_PACKETS_IN: Final = ("connect", "publish", *_ACKNOWLEDGEMENTS, "subscribe", "unsubscribe", "pingreq", "disconnect", "auth")
_PACKETS_OUT: Final = ("connack", "publish", *_ACKNOWLEDGEMENTS, "suback", "unsuback", "pingresp", "disconnect", "auth")

_PACKETS: Final = {
    "packets_received": _counter("Packets received from clients."),
    "packets_sent": _counter("Packets sent to clients."),
    **{f"packets_{name}_received": _counter(f"{name.upper()} packets received.") for name in _PACKETS_IN},
    **{f"packets_{name}_sent": _counter(f"{name.upper()} packets sent.") for name in _PACKETS_OUT},
    "packets_malformed": _counter("Packets that broke the protocol; their connections were closed."),
    "packets_too_large": _counter("Packets above the maximum size; their connections were closed."),
    "packets_ack_missed": _counter("Acknowledgements for packet identifiers that are not in use."),
    "packets_connack_error": _counter("CONNECT packets that were refused."),
    "packets_connack_auth_error": _counter("CONNECT packets refused for their user name, password or method."),
    "packets_publish_auth_error": _counter("PUBLISH packets refused by the access rules."),
    "packets_subscribe_auth_error": _counter("Subscriptions refused by the access rules."),
    "packets_subscribe_error": _counter("Subscriptions refused for another reason."),
}

_CLIENTS: Final = {
    "client_connect": _counter("CONNECT packets taken up."),
    "client_connected": _counter("Connections that were accepted."),
    "client_disconnected": _counter("Accepted connections that ended."),
    "client_subscribe": _counter("Subscriptions made."),
    "client_unsubscribe": _counter("Subscriptions ended by their client."),
    "client_keepalive_timeout": _counter("Connections closed because the client fell silent."),
    "client_kicked": _counter("Connections closed by the operator."),
    "connections_refused": _counter("Connections turned away before MQTT began: by limit, rate, PROXY header or handshake."),
    "session_created": _counter("Sessions made."),
    "session_resumed": _counter("Sessions that their client came back to."),
    "session_takenover": _counter("Sessions taken over by a newer connection of the same client id."),
    "session_discarded": _counter("Sessions thrown away by a clean start."),
    "session_terminated": _counter("Sessions that ended, for whatever reason."),
    "authentication_success": _counter("Logins that succeeded."),
    "authentication_success_anonymous": _counter("Connections accepted without a login."),
    "authentication_failure": _counter("Logins that failed."),
    "authorization_allow": _counter("Questions to the access rules answered with yes."),
    "authorization_deny": _counter("Questions to the access rules answered with no."),
    "log_lines_suppressed": _counter("Log lines left out because too many of their kind came."),
}

_HISTORY: Final = {
    "history_health": _gauge("Whether the log takes messages: 0 yes, 1 slowly, 2 no."),
    "history_records_count": _gauge("Records in the log."),
    "history_records_bytes": _gauge("Bytes of the records in the log, before compression."),
    "history_oldest_age_seconds": _gauge("Age of the oldest record that retention has left."),
    "history_pending_bytes": _gauge("Bytes that wait to be on disk."),
    "history_disk_free_bytes": _gauge("Space left on the disk of the log."),
    "history_compaction_pending_bytes": _gauge("Bytes that the storage engine has still to rewrite."),
    "history_appended": _counter("Records that are on disk and were appended since the start."),
    "history_appended_bytes": _counter("Bytes of these records, with their keys."),
    "history_commits": _counter("Commits: times that what was written was brought to the disk."),
    "history_commit_seconds": _counter("Seconds that all commits took together."),
    "history_refused": _counter("Messages and changes that the log refused: the disk was full, too slow or gone."),
    "history_lost": _counter(
        "Messages in flight, and stretches of the log, that retention took before a durable session had them."
    ),
    "history_replayed": _counter("Records read from the log, for clients and all other readers."),
    "history_service_up": _gauge("Whether the history service (Arrow Flight) listens."),
    "history_service_restarts": _counter("Times that the process of the history service had to be started again."),
    "history_service_streams": _gauge("Streams that the history service has open."),
    "history_service_rows": _counter("Rows that the history service has sent."),
    "history_service_bytes": _counter("Bytes of these rows, as Arrow has them."),
}

METRICS: Final[dict[str, MetricName]] = {**_STATE, **_TRAFFIC, **_DROPS, **_PACKETS, **_CLIENTS, **_HISTORY}
