"""Counters outside the message path; the others are in ``lane.path.state.Counters``."""

from __future__ import annotations

from collections import Counter


class Statistics:
    """Plain integers since the node started."""

    def __init__(self) -> None:
        self.connected = self.disconnected = self.live = self.connections_max = 0
        self.abandoned = 0  # CONNECTs whose clients had left before a client id was claimed for them
        self.authenticating = 0  # CONNECTs and AUTHs that wait for an authenticator now
        self.created = self.resumed = self.taken_over = self.discarded = self.expired = self.ended = 0
        self.owners_protected = 0  # CONNECTs without a user that were refused because a user has the session
        self.kicked = self.keep_alive_timeouts = 0
        self.subscribed = self.unsubscribed = self.subscriptions_denied = self.subscriptions_refused = 0
        self.own_messages = self.retained = self.delayed = 0  # published by the node itself; stored; taken in for later
        self.deliveries_withdrawn = self.deliveries_dropped_by_hook = 0
        self.dropped_revoked = 0  # wills and delayed messages that their client may no longer publish
        self.dropped_by_hook = self.dropped_retained_full = self.dropped_reserved = self.dropped_delayed_full = 0
        self.dropped_payload_format = 0
        self.lost_to_retention = 0  # what retention took before a durable session had read it
        self.authentication_success = self.authentication_failure = self.anonymous = 0
        self.authorization_allow = self.authorization_deny = 0
        self.packets_received: Counter[str] = Counter()  # by kind, those that the lane does not count
        self.packets_sent: Counter[str] = Counter()
        self.violations: Counter[int] = Counter()  # broken rules of the protocol by reason code
        self.refusals: Counter[int] = Counter()  # CONNACK by reason code
        self.disconnects: Counter[int] = Counter()  # ends of connections by reason code
        self.drops: Counter[str] = Counter()
        self.listener_refusals: Counter[str] = Counter()  # connections that ended before MQTT began, by reason

    def on_refused(self, listener: str, reason: str) -> None:
        """A listener refused a connection."""
        self.listener_refusals[reason] += 1
