"""Every metric of a node, declared once: the stem of its name, its type, its help text and the source of its value.

The stems are those that MQTT dashboards already use; Prometheus sees them with the prefix ``braidmq_``.

A source is a path from the attributes of ``braidmq.metrics.Figures``, or a sum of paths; the value of an object with a length is
its length. With ``*`` it is the sum of all other metrics whose names match.
"""

from __future__ import annotations

from typing import Final

from braidmq.api.metric_name import MetricName
from braidmq.api.metric_name import counter as _counter
from braidmq.api.metric_name import gauge as _gauge
from braidmq.api.registry_metrics import REGISTRY_METRICS

PREFIX: Final = "braidmq_"


_STATE: Final = {
    "uptime_seconds": _gauge("Seconds since the node started.", "uptime_s", is_summed=False),
    "connections_count": _gauge("Connections, and sessions whose client is offline.", "sessions"),
    "live_connections_count": _gauge("Clients connected now.", "statistics.live"),
    "connections_room_count": _gauge(
        "Client connections that the node's file descriptor limit allows.", "client_room.connections_max"
    ),
    "workers_count": _gauge("Workers that are ready.", "workers.running"),
    "workers_restarts": _counter("Restarts of workers that ended on their own.", "workers.restarts"),
    "sessions_count": _gauge("Sessions, connected or not.", "sessions"),
    "sessions_durable_count": _gauge("Sessions that survive a restart of the node.", "sessions.durable"),
    "topics_count": _gauge("Topic filters that have subscribers.", "broker.routes.filters", is_summed=False),
    "subscriptions_count": _gauge("Subscriptions of all sessions, shared ones included.", "subscriptions"),
    "subscriptions_shared_count": _gauge("Shared subscriptions.", "broker.groups.members"),
    "retained_count": _gauge("Retained messages.", "broker.retained"),
    "retained_bytes": _gauge("Payload bytes of retained messages.", "broker.retained.payload_bytes"),
    "retained_memory_bytes": _gauge(
        "Bytes of payloads and properties of retained messages held in memory.", "broker.retained.memory_bytes"
    ),
    "delayed_count": _gauge("Delayed messages not yet due.", "broker.delayed"),
    "delayed_bytes": _gauge("Bytes of delayed messages not yet due; they are stored on disk.", "broker.delayed.size_bytes"),
    "bans_count": _gauge("Bans in force.", "access.bans", is_summed=False),
    "bans_automatic_count": _gauge("Bans in force that failed logins caused.", "access.bans.automatic"),
    "logins_recent_count": _gauge(
        "Remembered recent logins, which failed logins of other clients do not lock out; two entries per login.",
        "access.recent_logins",
    ),
    "queue_messages_count": _gauge("Messages waiting in the queues of sessions.", "state.queued_messages"),
    "queue_bytes_count": _gauge("Bytes waiting in the queues of sessions.", "state.queued_bytes"),
    "held_bytes": _gauge(
        "Bytes in memory for offline and slow clients: messages in flight and queued, including overhead.",
        "state.held_bytes",
    ),
    "wills_bytes": _gauge("Memory of all wills that take more than 1 KiB.", "sessions.will_bytes"),
    "outboxes_bytes": _gauge("Unsent bytes of clients that are not reading.", "state.unread_bytes"),
    "parts_bytes": _gauge(
        "Bytes of large incomplete packets; includes some that were completed since the last check.",
        "broker.parts.size_bytes",
    ),
    "deferred_bytes": _gauge("Bytes of messages deferred by shared groups and not delivered yet.", "state.deferred_bytes"),
    "inflight_count": _gauge("QoS 1 and 2 messages sent to clients and not yet acknowledged.", "inflight"),
    "undelivered_count": _gauge(
        "Messages with many subscribers whose remaining deliveries are deferred to a later turn.", "state.unshown"
    ),
    "replay_readers_count": _gauge("Replays and shared groups that are reading the log.", "broker.readers"),
    "replay_readers_waiting_count": _gauge(
        "Replays and shared groups that are waiting for a reader slot.", "broker.readers.waiting"
    ),
    "replay_readers_displaced": _counter(
        "Readers that gave up their slot to a reader of another user, or to the next in line.", "broker.readers.displaced"
    ),
    "cert_expiry_at": _gauge(
        "Earliest expiry of a server certificate, in seconds since 1970.", "cert_expiry_at", is_summed=False
    ),
}

_TRAFFIC: Final = {
    "bytes_received": _counter("Bytes received from clients.", "counters.bytes_received"),
    "bytes_sent": _counter("Bytes sent to clients.", "counters.bytes_sent"),
    "messages_received": _counter("Messages received from clients.", "counters.messages_received"),
    "messages_qos0_received": _counter("QoS 0 messages received from clients.", "counters.publish_qos0_received"),
    "messages_qos1_received": _counter("QoS 1 messages received from clients.", "counters.publish_qos1_received"),
    "messages_qos2_received": _counter("QoS 2 messages received from clients.", "counters.publish_qos2_received"),
    "messages_sent": _counter("Messages sent to clients.", "messages_sent"),
    "messages_qos0_sent": _counter("QoS 0 messages sent to clients.", "counters.publish_qos0_sent"),
    "messages_qos1_sent": _counter("QoS 1 messages sent to clients.", "counters.publish_qos1_sent"),
    "messages_qos2_sent": _counter("QoS 2 messages sent to clients.", "counters.publish_qos2_sent"),
    "messages_publish": _counter(
        "Messages published, by clients and by the node itself.", "counters.messages_received + statistics.own_messages"
    ),
    "messages_acked": _counter("QoS 1 and 2 messages that clients acknowledged.", "counters.acked"),
    "messages_delivered": _counter("Messages handed to subscribers.", "counters.delivered"),
    "messages_retained": _counter("Retained messages stored.", "statistics.retained"),
    "messages_delayed": _counter("Delayed messages accepted.", "statistics.delayed"),
    "publishers_held": _counter(
        "Times the node stopped reading from a publisher until a subscriber's queue had room.", "counters.publishers_held"
    ),
    "inflight_let_go": _counter(
        "Messages in flight removed from memory; they are read from the log if they must be resent.", "broker.holdings.let_go"
    ),
}

_DROPS: Final = {
    "messages_dropped": _counter("Messages that were not delivered to any subscriber, for any reason.", "messages_dropped_*"),
    "messages_dropped_no_subscribers": _counter(
        "Messages dropped because no client is subscribed.", "counters.dropped_no_subscribers"
    ),
    "messages_dropped_not_authorized": _counter(
        "Messages dropped because the client may not publish to the topic.",
        "counters.dropped_not_authorized + statistics.dropped_revoked",
    ),
    "messages_dropped_receive_maximum": _counter(
        "Messages that exceeded the receive maximum; their connections were closed.", "violations.RECEIVE_MAXIMUM_EXCEEDED"
    ),
    "messages_dropped_reserved": _counter(
        "Messages from clients to topics reserved for the node, such as $SYS.", "statistics.dropped_reserved"
    ),
    "messages_dropped_payload_format": _counter(
        "Messages rejected because their payload is marked as UTF-8 and is not valid UTF-8.", "statistics.dropped_payload_format"
    ),
    "messages_dropped_not_stored": _counter(
        "Messages rejected because the log could not store them.", "counters.dropped_not_stored"
    ),
    "messages_dropped_hook": _counter("Messages that a hook rejected.", "statistics.dropped_by_hook"),
    "messages_dropped_retained_full": _counter(
        "Retained messages rejected because the store is full or the message is too large.", "statistics.dropped_retained_full"
    ),
    "messages_dropped_delayed_full": _counter(
        "Delayed messages rejected because a limit of [delayed] is reached or the delay is too long.",
        "statistics.dropped_delayed_full",
    ),
    "delivery_dropped": _counter("Deliveries to one subscriber that were dropped, for any reason.", "delivery_dropped_*"),
    "delivery_dropped_queue_full": _counter(
        "Deliveries dropped because the session's queue is full.", "counters.dropped_queue_full"
    ),
    "delivery_dropped_memory_full": _counter(
        "Deliveries dropped because limits.held_bytes_max is reached.", "counters.dropped_memory_full"
    ),
    "delivery_dropped_expired": _counter(
        "Deliveries dropped because the message expired in the queue.", "counters.dropped_expired"
    ),
    "delivery_dropped_too_large": _counter(
        "Deliveries dropped because the packet exceeds the client's maximum packet size.", "counters.dropped_too_large"
    ),
    "delivery_dropped_no_local": _counter(
        "Deliveries skipped because the subscriber published the message itself (No Local).", "counters.dropped_no_local"
    ),
    "delivery_dropped_qos0_msg": _counter("QoS 0 deliveries dropped because the client is offline.", "counters.dropped_absent"),
    "delivery_dropped_outbox_full": _counter(
        "QoS 0 deliveries dropped because the client reads too slowly.", "counters.dropped_outbox_full"
    ),
    "delivery_dropped_peer_full": _counter(
        "Unrecorded messages dropped because another node reads too slowly.", "counters.dropped_peer_full"
    ),
    "delivery_dropped_not_authorized": _counter(
        "Deliveries dropped because the client may no longer receive the topic.", "statistics.deliveries_withdrawn"
    ),
    "delivery_dropped_hook": _counter("Deliveries that a hook rejected.", "statistics.deliveries_dropped_by_hook"),
    "delivery_dropped_session_ended": _counter(
        "Deliveries lost with the queue of a session that ended.", "counters.dropped_session_ended"
    ),
}

_ACKNOWLEDGEMENTS: Final = ("puback", "pubrec", "pubrel", "pubcomp")
_PACKETS_IN: Final = ("connect", "publish", *_ACKNOWLEDGEMENTS, "subscribe", "unsubscribe", "pingreq", "disconnect", "auth")
_PACKETS_OUT: Final = ("connack", "publish", *_ACKNOWLEDGEMENTS, "suback", "unsuback", "pingresp", "disconnect", "auth")

_PACKETS: Final = {
    "packets_received": _counter("Packets received from clients.", "packets_*_received"),
    "packets_sent": _counter("Packets sent to clients.", "packets_*_sent"),
    **{
        f"packets_{name}_received": _counter(f"{name.upper()} packets received.", f"packets_received.{name}")
        for name in _PACKETS_IN
    },
    **{f"packets_{name}_sent": _counter(f"{name.upper()} packets sent.", f"packets_sent.{name}") for name in _PACKETS_OUT},
    "packets_malformed": _counter("Packets that broke the protocol; their connections were closed.", "packets_malformed"),
    "packets_too_large": _counter(
        "Packets above the maximum size; their connections were closed.", "violations.PACKET_TOO_LARGE"
    ),
    "packets_ack_missed": _counter("Acknowledgements for packet identifiers that are not in use.", "counters.stray_acks"),
    "packets_connack_error": _counter("CONNECT packets that were rejected.", "connack_errors"),
    "packets_connack_auth_error": _counter(
        "CONNECT packets rejected because of their user name, password or authentication method.",
        "refusals.BAD_USER_NAME_OR_PASSWORD + refusals.NOT_AUTHORIZED + refusals.BAD_AUTHENTICATION_METHOD",
    ),
    "packets_publish_auth_error": _counter("PUBLISH packets rejected by the access rules.", "counters.dropped_not_authorized"),
    "packets_subscribe_auth_error": _counter("Subscriptions rejected by the access rules.", "statistics.subscriptions_denied"),
    "packets_subscribe_error": _counter("Subscriptions rejected for another reason.", "statistics.subscriptions_refused"),
}

_CLIENTS: Final = {
    "client_connect": _counter("CONNECT packets processed.", "statistics.packets_received.connect"),
    "client_connected": _counter("Connections that were accepted.", "statistics.connected"),
    "client_abandoned": _counter(
        "In a cluster: CONNECT packets of clients that had left before their node handled them.", "statistics.abandoned"
    ),
    "client_disconnected": _counter("Accepted connections that ended.", "statistics.disconnected"),
    "client_subscribe": _counter("Subscriptions made.", "statistics.subscribed"),
    "client_unsubscribe": _counter("Subscriptions ended by their client.", "statistics.unsubscribed"),
    "client_keepalive_timeout": _counter(
        "Connections closed because the client missed its keep-alive.", "statistics.keep_alive_timeouts"
    ),
    "hook_failures": _counter(
        "Hook calls that raised or returned an invalid value, except `authenticate`.", "broker.hooks.failures"
    ),
    "pauses": _counter(
        "Pauses in which the node did not run (stopped, suspended, starved of CPU); each one extends all deadlines.",
        "broker.timers.pauses",
    ),
    "paused_seconds": _counter("Total seconds of these pauses.", "broker.timers.paused_s"),
    "client_kicked": _counter("Connections closed by the operator.", "statistics.kicked"),
    "client_closed_parts_full": _counter(
        "Connections closed because incomplete packets took too much memory.", "broker.parts.closed"
    ),
    "connections_refused": _counter(
        "Connections rejected before MQTT began: by limit, rate, PROXY header, handshake or file descriptors.",
        "connections_refused",
    ),
    "connections_refused_open_files": _counter(
        "Client connections rejected because the remaining file descriptors are reserved for the log.", "client_room.refused"
    ),
    "api_connections_refused": _counter(
        "API connections rejected because the API's file descriptors are all in use.", "api_room.refused"
    ),
    "control_connections_refused": _counter(
        "Connections to the control socket rejected because its file descriptors are all in use.", "control_room.refused"
    ),
    "session_created": _counter("Sessions created.", "statistics.created"),
    "session_resumed": _counter("Sessions resumed by their client.", "statistics.resumed"),
    "session_takenover": _counter("Sessions taken over by a newer connection of the same client id.", "statistics.taken_over"),
    "session_discarded": _counter("Sessions discarded by a clean start.", "statistics.discarded"),
    "session_owner_protected": _counter(
        "Anonymous CONNECT packets rejected because the session of their client id belongs to a user.",
        "statistics.owners_protected",
    ),
    "session_terminated": _counter("Sessions that ended, for any reason.", "statistics.ended"),
    "authentication_success": _counter("Logins that succeeded.", "statistics.authentication_success"),
    "authentication_success_anonymous": _counter("Connections accepted without a login.", "statistics.anonymous"),
    "authentication_failure": _counter("Logins that failed.", "statistics.authentication_failure"),
    "authentication_pending_count": _gauge("CONNECT and AUTH packets waiting for an authenticator.", "statistics.authenticating"),
    "authentication_banned": _counter("Logins rejected without a password check because of a ban.", "access.refused_banned"),
    "authentication_throttled": _counter(
        "Logins rejected without a password check because too many failed from the same address.", "access.refused_throttled"
    ),
    "authorization_allow": _counter("Access checks that allowed the operation.", "statistics.authorization_allow"),
    "authorization_deny": _counter("Access checks that denied the operation.", "statistics.authorization_deny"),
    "log_lines_suppressed": _counter(
        "Log lines suppressed because there were too many of the same kind.", "log_lines_suppressed"
    ),
}

_HISTORY: Final = {
    "history_health": _gauge("Whether the log accepts messages: 0 yes, 1 slowly, 2 no.", "log_health"),
    "history_records_count": _gauge("Records in the log.", "log.records"),
    "history_records_bytes": _gauge("Bytes of the records in the log, before compression.", "log.size_bytes"),
    "history_oldest_age_seconds": _gauge("Age of the oldest record in the log, in seconds.", "log_oldest_age_s"),
    "history_pending_bytes": _gauge("Bytes written but not yet committed to disk.", "log.pending_bytes"),
    "history_disk_free_bytes": _gauge("Free bytes on the disk of the log.", "log.store.disk_free_bytes"),
    "history_compaction_pending_bytes": _gauge("Bytes waiting for compaction.", "log.store.pending_compaction_bytes"),
    "history_appended": _counter("Records committed to disk since the start.", "log_appended"),
    "history_appended_bytes": _counter("Bytes of these records, including their keys.", "log_appended_bytes"),
    "history_commits": _counter("Commits to disk.", "log.store.commits"),
    "history_commit_seconds": _counter("Total seconds spent in commits.", "log_commit_s"),
    "history_refused": _counter(
        "Messages and changes that the log rejected because the disk was full, too slow or unavailable.", "log.refused"
    ),
    "history_recoveries": _counter("Times the log was reopened after a disk fault, without a restart.", "log.store.recoveries"),
    "history_lost": _counter(
        "Messages in flight, and ranges of the log, that retention removed before a durable session read them.",
        "statistics.lost_to_retention",
    ),
    "history_replayed": _counter("Records read from the log, by clients and all other readers.", "log_replayed"),
    "history_readers_count": _gauge("Named readers, for which retention waits.", "named_readers"),
    "history_readers_refused": _counter(
        "Named readers rejected: owned by another user, anonymous where users exist, or too many of one user.",
        "service.readers_refused",
    ),
    "history_service_up": _gauge("Whether the history service (Arrow Flight) listens.", "service_is_up"),
    "history_service_restarts": _counter("Restarts of the history service process.", "service.restarts"),
    "history_service_streams": _gauge("Open streams of the history service.", "service.served.streams"),
    "history_service_streams_refused": _counter(
        "Streams rejected because their reader had history.streams_max open.", "service.served.refused"
    ),
    "history_service_rows": _counter("Rows that the history service has sent.", "service.served.rows"),
    "history_service_bytes": _counter("Bytes of these rows in the Arrow format.", "service.served.size_bytes"),
    "history_service_connections_refused": _counter(
        "Connections to the history service closed because its file descriptors ran short.", "service.served.connections_refused"
    ),
}

_REFUSALS: Final = {
    "secret": "they did not know cluster.secret",
    "cluster": "they belong to another cluster",
    "version": "the two nodes have no version of the protocol in common",
    "unwelcome": "their name, role, incarnation or number of shards is wrong",
    "protocol": "they did not speak the protocol",
    "timeout": "the handshake took too long",
    "crowded": "too many other handshakes were in progress",
    "tls": "TLS failed",
    "refused": "the other node rejected this one, for example because the secrets differ",
}

_SUFFIXES: Final = {"refused": "by_node"}

_CLUSTER: Final = {
    "nodes_count": _gauge(
        "Nodes of the cluster that are alive, the core included; 0 without a cluster.", "cluster.nodes", is_summed=False
    ),
    "nodes_replicants_count": _gauge("Replicants that are alive.", "cluster.replicants", is_summed=False),
    "nodes_workers_count": _gauge("Workers that are members of the cluster.", "cluster.workers", is_summed=False),
    "nodes_away_count": _gauge("Nodes that are alive and not connected to the core.", "cluster.away", is_summed=False),
    "nodes_silent_count": _gauge(
        "Nodes that did not answer the last request that was sent to all of them.", "cluster.silent", is_summed=False
    ),
    "nodes_lagging_count": _gauge(
        "Nodes that publishers of unrecorded messages do not wait for.", "cluster.lagging", is_summed=False
    ),
    "nodes_lagged": _counter("Times a node was too slow to confirm an unrecorded message.", "cluster.lagged"),
    "sessions_on_nodes_count": _gauge("Sessions that live on workers and replicants.", "cluster.sessions", is_summed=False),
    "shared_leases_count": _gauge(
        "Messages of shared groups lent to members on workers and replicants and not yet settled.",
        "cluster.leases",
        is_summed=False,
    ),
    "routes_own_count": _gauge(
        "Topic filters that this node has announced to the others.", "cluster.routes_own", is_summed=False
    ),
    "routes_remote_count": _gauge(
        "Topic filters that other nodes have announced, each counted once per node.", "cluster.routes_remote", is_summed=False
    ),
    "clock_offset_seconds": _gauge(
        "The time of the cluster minus this node's wall clock.", "cluster.clock_offset_s", is_summed=False
    ),
    "clock_bound_seconds": _gauge(
        "How far this node's cluster clock may be from the reference's; above 1 s new clients are refused.",
        "cluster.clock_bound_s",
        is_summed=False,
    ),
    "clock_is_reference": _gauge("1 on the core that gives the cluster its time.", "cluster.clock_reference", is_summed=False),
    "clock_refused": _counter(
        "CONNECTs refused while the time of the cluster was not known well enough.", "cluster.clock_refused"
    ),
    "rlog_lag_entries_p50": _gauge(
        "Route changes that a node has not been sent yet: the median over all nodes.", "cluster.rlog_lag_p50", is_summed=False
    ),
    "rlog_lag_entries_p99": _gauge("The same: the 99th percentile.", "cluster.rlog_lag_p99", is_summed=False),
    "rlog_lag_entries_max": _gauge("The same: the node that is furthest behind.", "cluster.rlog_lag_max", is_summed=False),
    "feeds_following_count": _gauge(
        "Nodes that are sent each record as soon as it is committed.", "cluster.feeds_following", is_summed=False
    ),
    "feeds_behind_count": _gauge(
        "Nodes that were too slow, so that the core reads the log for them.", "cluster.feeds_behind", is_summed=False
    ),
    "feeds_lag_seconds": _gauge("Lag of the slowest feed, in seconds of the log.", "cluster.feed_lag_s", is_summed=False),
    "peers_outlet_bytes": _gauge(
        "Bytes of messages and records waiting to be sent to other nodes.", "cluster.outlets_bytes", is_summed=False
    ),
    "blocks_unanswered_bytes": _gauge(
        "Bytes of blocks that the core has not answered yet.", "cluster.unanswered_bytes", is_summed=False
    ),
    "blocks_refused": _counter("Blocks of nodes that the core could not store.", "cluster.blocks_refused"),
    "entries_fenced": _counter(
        "Entries of blocks that were refused because another connection owns the client id.", "cluster.entries_fenced"
    ),
    "scans_open_count": _gauge("Scans of the core's log that nodes have open.", "cluster.scans", is_summed=False),
    "claims_granted": _counter("Client ids granted to clients of workers and replicants.", "cluster.claims_granted"),
    "claims_rejected": _counter("Claims of such clients that were rejected.", "cluster.claims_rejected"),
    "claims_taken_over": _counter(
        "Client ids taken from a client of a worker or replicant by a newer connection.", "cluster.claims_taken_over"
    ),
    "claims_fenced": _counter("Of these, the ones whose node did not release the client id in time.", "cluster.claims_fenced"),
    "registry_times_ignored": _counter(
        "Times that clients stated in `registry.version_property` and that were invalid, too early or in the future.",
        "cluster.times_ignored",
    ),
    **REGISTRY_METRICS,
    "registry_locks_count": _gauge(
        'Locks of client ids that nodes with `registry.mode = "eventual"` have from this core, or wait for.',
        "cluster.locks",
        is_summed=False,
    ),
    "registry_locks_overdue": _counter("Such locks that were held for `registry.lock_timeout`.", "cluster.locks_overdue"),
    "registry_locks_refused": _counter("Such locks that there was no room for.", "cluster.locks_refused"),
    "registry_locks_missed": _counter(
        "CONNECTs on this node that did not get their lock within `cluster.home_wait`.", "cluster.locks_missed"
    ),
    "registry_ends_missed": _counter(
        "Channels whose nodes did not say within `registry.wait` that they have ended.", "cluster.ends_missed"
    ),
    "registry_bag_count": _gauge("Client ids of this node in the replicated bag.", "cluster.bag", is_summed=False),
    "misdirected": _counter(
        "Claims, blocks and rows that nodes sent here although another core leads their shards.", "cluster.misdirected"
    ),
    "routes_doubted": _gauge(
        "1 while this core is not certain of all routes and records every message with QoS 1 or 2; 0 with one core.",
        "cluster.in_doubt",
        is_summed=False,
    ),
    "routes_doubts": _counter("Times that this core became uncertain of them.", "cluster.doubts"),
    "routes_durable_count": _gauge(
        "Topic filters of durable sessions that this core has announced to the other cores.",
        "cluster.routes_durable",
        is_summed=False,
    ),
    "retained_intents_count": _gauge(
        "Retained messages on their way from this core to the homes of their topics.", "cluster.intents", is_summed=False
    ),
    "retained_intents_superseded": _counter(
        "Retained messages that came to the home of their topic late, after a newer one.", "cluster.intents_superseded"
    ),
    "retained_removals_count": _gauge(
        "Topics whose removal this core remembers, because other cores may still send something older.",
        "cluster.removals",
        is_summed=False,
    ),
    "cluster_connections_refused": _counter(
        "Connections of other nodes that were refused, for any reason.", "cluster_connections_refused"
    ),
    **{
        f"cluster_connections_refused_{_SUFFIXES.get(kind, kind)}": _counter(
            f"Connections of other nodes refused: {reason}.", f"cluster.refusals.{kind}"
        )
        for kind, reason in _REFUSALS.items()
    },
}

METRICS: Final[dict[str, MetricName]] = {**_STATE, **_TRAFFIC, **_DROPS, **_PACKETS, **_CLIENTS, **_HISTORY, **_CLUSTER}
