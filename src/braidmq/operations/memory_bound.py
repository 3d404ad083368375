"""The maximum memory of a node for its configuration: the sum of the limits of everything that clients can fill."""

from __future__ import annotations

from braidmq.base.config.settings import MIB, Settings
from braidmq.broker.packets.connect import WILLS_PART
from braidmq.broker.reading.replay import READERS_MAX
from braidmq.broker.reading.slots import IDLE_MAX
from braidmq.lane.flows.flow import PRESSED_BYTES
from braidmq.lane.flows.group_flow import DEFERRED_BYTES_MAX
from braidmq.lane.flows.packed_deliveries import PACKED_BYTES
from braidmq.lane.flows.session_queue import HELD_COST
from braidmq.lane.path.lane import RECEIVE_BYTES
from braidmq.lane.path.topic_aliases import aliases_bytes_max
from braidmq.lane.path.writer import ALIAS_TOPIC_BYTES_MAX
from braidmq.storage.engine.rocksdb import Tuning
from braidmq.storage.log import LogOptions
from braidmq.storage.reading.reader import CHUNK_BYTES

# The process after its start: interpreter, libraries, routes and other bounded caches.
_PROCESS_BYTES = 192 * MIB
_SESSION_BYTES = 4096 + 8192  # with the packet ids of QoS 2 messages that its client has not released
_SILENT_BYTES = 8192  # a connection that has not authenticated, beside what it has sent of a CONNECT
_SUBSCRIPTION_BYTES = 2048
# A filter is there as the text that a client wrote, with up to four bytes for a character, as bytes, and in the tree of filters.
_FILTER_COPIES = 6
_VERDICTS_BYTES = 256 * 1024  # verdicts of access rules that a connection remembers
_DELAYED_BYTES = 250  # the time of a delayed message, and the key of its row
# The allocator releases free memory only in whole pieces, and garbage is collected only from time to time.
_ALLOCATOR = 1.25


def memory_bound(
    settings: Settings,
    *,
    connections: int,
    sessions: int,
    silent: int = 0,
    subscriptions: int = 0,
    filter_bytes: int = 0,
    packet_bytes: int = 0,
) -> int:
    """An upper bound of the process's memory, in bytes, for these numbers of connections, sessions and subscriptions.

    ``silent``: connections, beside these, that have not authenticated.
    ``filter_bytes``: those of the filters of all subscriptions, as written; one client has ``session.filter_bytes_max`` at most.
    ``packet_bytes``: the largest packet that is sent, if that is less than ``mqtt.packet_bytes_max``. A limit of 0 (no limit) for
    retained or delayed messages counts as 0: allow some memory for them. The history service is another process.
    """
    limits = settings.limits
    packet_bytes = packet_bytes or settings.mqtt.packet_bytes_max
    engine, log = Tuning(), LogOptions()
    log_bytes = engine.memtables_bytes + engine.block_cache_bytes
    log_bytes += log.pending_bytes_max + log.tail_bytes_max + log.scan_bytes_max
    # Each reader holds a chunk of the log and a part of the next one.
    readers_bytes = (READERS_MAX + min(IDLE_MAX, connections)) * (2 * CHUNK_BYTES + packet_bytes)
    node_bytes = limits.held_bytes_max + limits.held_bytes_max // WILLS_PART
    node_bytes += limits.outboxes_bytes_max + limits.parts_bytes_max + DEFERRED_BYTES_MAX
    node_bytes += settings.retained.bytes_max + settings.delayed.messages_max * _DELAYED_BYTES
    # Even at the limits, a client may have a little in flight and one packet beyond each limit: in flight, in its outbox, in the
    # transport below it, and received while reading is held.
    mqtt = settings.mqtt
    connection_bytes = RECEIVE_BYTES + PRESSED_BYTES + _VERDICTS_BYTES + 4 * packet_bytes
    connection_bytes += aliases_bytes_max(mqtt.topic_alias_maximum) + mqtt.topic_alias_maximum_out * ALIAS_TOPIC_BYTES_MAX
    # What is in flight counts as held, but neither a client that is here nor the places of messages in the log can be let go.
    session_bytes = _SESSION_BYTES + mqtt.inflight_max * PACKED_BYTES
    present_bytes = mqtt.inflight_max * HELD_COST
    clients_bytes = connections * connection_bytes + sessions * session_bytes + min(connections, sessions) * present_bytes
    clients_bytes += silent * (_SILENT_BYTES + limits.preauth_packet_bytes)
    clients_bytes += subscriptions * _SUBSCRIPTION_BYTES + filter_bytes * _FILTER_COPIES
    return int((_PROCESS_BYTES + log_bytes + readers_bytes + node_bytes + clients_bytes) * _ALLOCATOR)
