"""The figures of a running node under the names of ``api.metric_names``: all are counted already, nothing is walked through."""

from __future__ import annotations

from time import monotonic, time

from braidmq.access.local import LocalAccess
from braidmq.base import logs
from braidmq.broker.broker import Broker
from braidmq.broker.listeners.listener_set import ListenerSet
from braidmq.history.supervisor import HistoryService
from braidmq.mqtt.reasons import Reason
from braidmq.storage.health import Health, State
from braidmq.storage.log import MessageLog

# Of these the lane counts those that it sees, and only ``statistics`` those that it does not.
_PACKETS_IN = ("connect", "subscribe", "unsubscribe", "disconnect", "auth")
_PACKETS_OUT = ("connack", "suback", "unsuback", "disconnect", "auth")

_HEALTH = {State.OK: 0, State.SLOW: 1, State.STOPPED: 2}


def collect(
    broker: Broker,
    access: LocalAccess,
    listeners: ListenerSet,
    message_log: MessageLog,
    health: Health,
    service: HistoryService | None,
) -> dict[str, float]:
    """Every metric of the node as it is now."""
    values = {**_state(broker, access), **_traffic(broker), **_drops(broker), **_packets(broker), **_clients(broker)}
    values |= _history(broker, message_log, health)
    values |= _history_service(service)
    ends = [listeners.certificate_expiry(), service.certificate_expiry if service is not None else None]
    if any(ends):
        values["cert_expiry_at"] = min(end for end in ends if end is not None)
    values["log_lines_suppressed"] = logs.lines_suppressed()
    return values


def _state(broker: Broker, access: LocalAccess) -> dict[str, float]:
    counters = broker.state.counters
    sent = counters.publish_qos1_sent + counters.publish_qos2_sent
    return {
        "uptime_seconds": monotonic() - broker.started_at,
        "connections_count": len(broker.sessions),
        "live_connections_count": broker.statistics.live,
        "sessions_count": len(broker.sessions),
        "sessions_durable_count": broker.sessions.durable,
        "topics_count": broker.routes.filters,
        "subscriptions_count": broker.subscription_count(),
        "subscriptions_shared_count": broker.groups.members,
        "retained_count": len(broker.retained),
        "retained_bytes": broker.retained.payload_bytes,
        "delayed_count": len(broker.delayed),
        "bans_count": len(access.bans),
        "queue_messages_count": broker.state.queued_messages,
        "queue_bytes_count": broker.state.queued_bytes,
        "inflight_count": sent - counters.acked - counters.inflight_lost,
    }


def _traffic(broker: Broker) -> dict[str, float]:
    counters = broker.state.counters
    statistics = broker.statistics
    return {
        "bytes_received": counters.bytes_received,
        "bytes_sent": counters.bytes_sent,
        "messages_received": counters.messages_received,
        "messages_qos0_received": counters.publish_qos0_received,
        "messages_qos1_received": counters.publish_qos1_received,
        "messages_qos2_received": counters.publish_qos2_received,
        "messages_sent": counters.publish_qos0_sent + counters.publish_qos1_sent + counters.publish_qos2_sent,
        "messages_qos0_sent": counters.publish_qos0_sent,
        "messages_qos1_sent": counters.publish_qos1_sent,
        "messages_qos2_sent": counters.publish_qos2_sent,
        "messages_publish": counters.messages_received + statistics.own_messages,
        "messages_acked": counters.acked,
        "messages_delivered": counters.delivered,
        "messages_retained": statistics.retained,
        "messages_delayed": statistics.delayed,
    }


def _drops(broker: Broker) -> dict[str, float]:
    counters = broker.state.counters
    statistics = broker.statistics
    messages = {
        "no_subscribers": counters.dropped_no_subscribers,
        "not_authorized": counters.dropped_not_authorized + statistics.dropped_revoked,
        "reserved": statistics.dropped_reserved,
        "receive_maximum": statistics.violations[Reason.RECEIVE_MAXIMUM_EXCEEDED],
        "payload_format": statistics.dropped_payload_format,
        "not_stored": counters.dropped_not_stored,
        "hook": statistics.dropped_by_hook,
        "retained_full": statistics.dropped_retained_full,
        "delayed_full": statistics.dropped_delayed_full,
    }
    deliveries = {
        "queue_full": counters.dropped_queue_full,
        "expired": counters.dropped_expired,
        "too_large": counters.dropped_too_large,
        "no_local": counters.dropped_no_local,
        "qos0_msg": counters.dropped_absent,
        "outbox_full": counters.dropped_outbox_full,
        "not_authorized": statistics.deliveries_withdrawn,
        "hook": statistics.deliveries_dropped_by_hook,
        "session_ended": counters.dropped_session_ended,
    }
    return {
        "messages_dropped": sum(messages.values()),
        **{f"messages_dropped_{reason}": count for reason, count in messages.items()},
        "delivery_dropped": sum(deliveries.values()),
        **{f"delivery_dropped_{reason}": count for reason, count in deliveries.items()},
    }


def _packets(broker: Broker) -> dict[str, float]:
    counters = broker.state.counters
    statistics = broker.statistics
    received: dict[str, float] = {name: statistics.packets_received[name] for name in _PACKETS_IN}
    received |= {
        "publish": counters.messages_received,
        "puback": counters.puback_received,
        "pubrec": counters.pubrec_received,
        "pubrel": counters.pubrel_received,
        "pubcomp": counters.pubcomp_received,
        "pingreq": counters.pingreq_received,
    }
    sent: dict[str, float] = {name: statistics.packets_sent[name] for name in _PACKETS_OUT}
    sent |= {
        "publish": counters.publish_qos0_sent + counters.publish_qos1_sent + counters.publish_qos2_sent,
        "puback": counters.puback_sent,
        "pubrec": counters.pubrec_sent,
        "pubrel": counters.pubrel_sent,
        "pubcomp": counters.pubcomp_sent,
        "pingresp": counters.pingreq_received,
    }
    refusals = statistics.refusals
    return {
        "packets_received": sum(received.values()),
        "packets_sent": sum(sent.values()),
        **{f"packets_{name}_received": count for name, count in received.items()},
        **{f"packets_{name}_sent": count for name, count in sent.items()},
        "packets_malformed": sum(statistics.violations.values()),
        "packets_too_large": statistics.violations[Reason.PACKET_TOO_LARGE],
        "packets_ack_missed": counters.stray_acks,
        "packets_connack_error": sum(refusals.values()),
        "packets_connack_auth_error": sum(
            refusals[reason]
            for reason in (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED, Reason.BAD_AUTHENTICATION_METHOD)
        ),
        "packets_publish_auth_error": counters.dropped_not_authorized,
        "packets_subscribe_auth_error": statistics.subscriptions_denied,
        "packets_subscribe_error": statistics.subscriptions_refused,
    }


def _clients(broker: Broker) -> dict[str, float]:
    statistics = broker.statistics
    return {
        "client_connect": statistics.packets_received["connect"],
        "client_connected": statistics.connected,
        "client_disconnected": statistics.disconnected,
        "client_subscribe": statistics.subscribed,
        "client_unsubscribe": statistics.unsubscribed,
        "client_keepalive_timeout": statistics.keep_alive_timeouts,
        "client_kicked": statistics.kicked,
        "connections_refused": sum(statistics.listener_refusals.values()),
        "session_created": statistics.created,
        "session_resumed": statistics.resumed,
        "session_takenover": statistics.taken_over,
        "session_discarded": statistics.discarded,
        "session_terminated": statistics.ended,
        "authentication_success": statistics.authentication_success,
        "authentication_success_anonymous": statistics.anonymous,
        "authentication_failure": statistics.authentication_failure,
        "authorization_allow": statistics.authorization_allow,
        "authorization_deny": statistics.authorization_deny,
    }


def _history(broker: Broker, message_log: MessageLog, health: Health) -> dict[str, float]:
    stats = message_log.stats()
    shards, store = stats.shards, stats.store
    oldest_us = min((shard.oldest for shard in shards if shard.oldest), default=0)
    return {
        "history_health": _HEALTH[health.state],
        "history_records_count": stats.records,
        "history_records_bytes": stats.size_bytes,
        "history_oldest_age_seconds": max(0.0, time() - oldest_us / 1e6) if oldest_us else 0.0,
        "history_pending_bytes": stats.pending_bytes,
        "history_disk_free_bytes": store["disk_free_bytes"],
        "history_compaction_pending_bytes": store["pending_compaction_bytes"],
        "history_appended": sum(shard.committed_records for shard in shards),
        "history_appended_bytes": sum(shard.committed_bytes for shard in shards),
        "history_commits": store["commits"],
        "history_commit_seconds": store["commit_us_total"] / 1e6,
        "history_refused": stats.refused,
        "history_lost": broker.statistics.lost_to_retention,
        "history_replayed": sum(shard.replayed_records for shard in shards),
    }


def _history_service(service: HistoryService | None) -> dict[str, float]:
    if service is None:
        return dict.fromkeys((f"history_service_{each}" for each in ("up", "restarts", "streams", "rows", "bytes")), 0)
    return {
        "history_service_up": service.address is not None,
        "history_service_restarts": service.restarts,
        "history_service_streams": service.served.streams,
        "history_service_rows": service.served.rows,
        "history_service_bytes": service.served.size_bytes,
    }
