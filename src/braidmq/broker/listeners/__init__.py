"""TCP, TLS and WebSocket listeners, PROXY protocol."""

from __future__ import annotations

from braidmq.broker.listeners.listener_set import ListenerSet, check_certificates
from braidmq.broker.listeners.origin import ListenerInfo, Origin, describe_peer

__all__ = ["ListenerInfo", "ListenerSet", "Origin", "check_certificates", "describe_peer"]
