"""The maximum memory of a node by its configuration: the sum of the limits of everything that clients can fill."""

from __future__ import annotations

from braidmq.base.config.settings import MIB, Settings
from braidmq.broker.packets.connect import WILLS_PART
from braidmq.broker.reading.replay import READERS_MAX
from braidmq.broker.reading.slots import IDLE_MAX
from braidmq.lane.path.flow import PRESSED_BYTES
from braidmq.lane.path.group_flow import DEFERRED_BYTES_MAX
from braidmq.lane.path.lane import RECEIVE_BYTES
from braidmq.storage.engine.rocksdb import Tuning
from braidmq.storage.log import LogOptions
from braidmq.storage.reading.reader import CHUNK_BYTES

# The process as it is started: interpreter, libraries, routes and other caches that have bounds of their own.
_PROCESS_BYTES = 192 * MIB
_SESSION_BYTES = 4096 + 8192  # with the packet ids of QoS 2 messages that its client has not released
_SUBSCRIPTION_BYTES = 2048
_IN_FLIGHT_BYTES = 300  # a message in flight that was let go
_DELAYED_BYTES = 250  # the time of a delayed message, and the key of its row
# The allocator gives back what is free only in whole pieces, and garbage is collected from time to time.
_ALLOCATOR = 1.25


def memory_bound(settings: Settings, *, connections: int, sessions: int, subscriptions: int = 0, packet_bytes: int = 0) -> int:
    """Bytes that the node's process stays below with at most so many connections, sessions and subscriptions.

    ``packet_bytes``: the largest packet that is sent, if that is less than ``mqtt.packet_bytes_max``. A bound of 0 (no limit) for
    retained or delayed messages counts as nothing: leave some for them. The history service is another process.
    """
    limits = settings.limits
    packet_bytes = packet_bytes or settings.mqtt.packet_bytes_max
    engine, log = Tuning(), LogOptions()
    log_bytes = engine.memtables_bytes + engine.block_cache_bytes
    log_bytes += log.pending_bytes_max + log.tail_bytes_max + log.scan_bytes_max
    # Each has read a chunk of the log, and something of the next one.
    readers_bytes = (READERS_MAX + min(IDLE_MAX, connections)) * (2 * CHUNK_BYTES + packet_bytes)
    node_bytes = limits.held_bytes_max + limits.held_bytes_max // WILLS_PART
    node_bytes += limits.outboxes_bytes_max + limits.parts_bytes_max + DEFERRED_BYTES_MAX
    node_bytes += settings.retained.bytes_max + settings.delayed.messages_max * _DELAYED_BYTES
    # Whatever the node holds, a client may have a little in flight and one packet beyond each bound: in flight, in its outbox, in
    # the transport below it, and received while it is not read from.
    connection_bytes = RECEIVE_BYTES + PRESSED_BYTES + 4 * packet_bytes
    session_bytes = _SESSION_BYTES + settings.mqtt.inflight_max * _IN_FLIGHT_BYTES
    clients_bytes = connections * connection_bytes + sessions * session_bytes + subscriptions * _SUBSCRIPTION_BYTES
    return int((_PROCESS_BYTES + log_bytes + readers_bytes + node_bytes + clients_bytes) * _ALLOCATOR)
