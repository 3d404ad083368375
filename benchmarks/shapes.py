"""The shapes of load, and the target of braidmq for each."""

from __future__ import annotations

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """A flow of messages. ``target``: the minimum ratio to mosquitto; ``v5``: also run with MQTT 5, within 15 % of 3.1.1."""

    name: str
    title: str
    arguments: tuple[str, ...]
    target: float | None = None
    v5: bool = False
    port: str = "tcp"


def _flow(words: str) -> tuple[str, ...]:
    return tuple(words.split())


PAIR_QOS0 = Shape("pair-qos0", "QoS 0, 10 to 10, window 200", _flow("-m pair -P 10 -q 0 -w 200"), 20, v5=True)

# Without batches: each message is a separate packet on the wire. Latency is measured at half of this.
SINGLE_QOS0 = Shape("single-qos0", "QoS 0, 500 to 500, one in flight", _flow("-m pair -P 500 -q 0 -w 1"), 1.2, v5=True)

FLOWS = [
    PAIR_QOS0,
    Shape("fanout-qos0", "QoS 0, 1 to 50, window 200", _flow("-m fanout -P 1 -S 50 -q 0 -w 200"), 25, v5=True),
    Shape("pair-qos1", "QoS 1, 10 to 10, window 100", _flow("-m pair -P 10 -q 1 -w 100"), 12, v5=True),
    Shape("pair-qos2", "QoS 2, 10 to 10, window 100", _flow("-m pair -P 10 -q 2 -w 100"), 12, v5=True),
    Shape("fanin-qos0", "QoS 0, 20 to one wildcard, window 100", _flow("-m fanin -P 20 -q 0 -w 100"), 15, v5=True),
    SINGLE_QOS0,
    Shape("single-qos1", "QoS 1, 500 to 500, one in flight", _flow("-m pair -P 500 -q 1 -w 1"), 1.2, v5=True),
    Shape("tls-qos0", "TLS, QoS 0, 10 to 10, window 200", _flow("-m pair -P 10 -q 0 -w 200 -t"), port="tls"),
    Shape("ws-qos0", "WebSocket, QoS 0, 10 to 10, window 200", _flow("-m pair -P 10 -q 0 -w 200 -x"), port="ws"),
]

# Messages are on disk before they are acknowledged or delivered; mosquitto stores nothing.
RECORDED = Shape("recorded-qos1", "QoS 1, 10 to 10, window 100, recorded with fsync", _flow("-m pair -P 10 -q 1 -w 100"), 2)
RECORDED_NATS_TARGET = 3.0  # times nats with its file store and `sync_interval: always`

# Measured separately.
CONNECT, MEMORY, IDLE, TABLE, LATENCY, LOG, RESUME = "connect", "memory", "idle", "table", "latency", "log", "resume"
HISTORY, SPARK = "history", "spark"
OTHERS = [CONNECT, MEMORY, IDLE, TABLE, LATENCY, RECORDED.name, LOG, RESUME, HISTORY, SPARK]
ALL = [shape.name for shape in FLOWS] + OTHERS

CONNECT_TARGET = 0.9  # of mosquitto's connects per second
MEMORY_TARGET_KIB = 4.1  # for an idle subscribed client
IDLE_TARGET = 0.02  # of a processor, with 10 000 idle connections
TABLE_TARGET = 0.5  # of the throughput with an empty table
V5_TARGET = 0.85  # of the throughput with MQTT 3.1.1
REPLAY_TARGET_PER_S = 300_000  # to an MQTT client with QoS 0
FIRST_TARGET_MS = 20.0  # to the first message of one exact topic
RESTART_TARGET_S = 5.0  # with the whole data set
RESUME_TARGET_S = 10.0  # until all sessions have all their messages
FLIGHT_TARGET = 0.6  # of bare iteration over the same records
SCAN_LATENCY_TARGET = 1.5  # times the p99 of an idle history service
GROUP_TARGET = 0.6  # of a Python data source that has the same batches in memory
EXACT_TARGET = 2.0  # times Spark's floor for a job without rows
TAIL_TARGET_PER_S = 100_000
TAIL_LAG_TARGET_S = 5.0
SINK_TARGET_PER_S = 100_000
SINK_TARGET = 0.5  # of what `braidmq bench` reaches, if that is less
ARCHIVE_TARGET = 0.5  # of Spark writing the same rows from memory


class Scale(msgspec.Struct, frozen=True):
    """The duration and size of the measurements."""

    rounds: int
    seconds: int
    clients: int
    idle_clients: int
    idle_seconds: float
    exact: int
    wildcard: int
    peer_rounds: int
    """For brokers that no target refers to."""
    records: int = 10_000_000
    sessions: int = 100_000
    resuming: int = 10_000
    history_records: int = 5_000_000
    history_topics: int = 1_000_000
    history_rounds: int = 3
    tail_seconds: int = 20
    sink_records: int = 1_000_000


FULL = Scale(
    rounds=5, seconds=2, clients=8000, idle_clients=10_000, idle_seconds=10.0, exact=1_000_000, wildcard=100_000, peer_rounds=1
)
QUICK = Scale(
    rounds=1,
    seconds=1,
    clients=4000,
    idle_clients=4000,
    idle_seconds=3.0,
    exact=100_000,
    wildcard=10_000,
    peer_rounds=0,
    records=500_000,
    sessions=5000,
    resuming=1000,
    history_records=500_000,
    history_topics=100_000,
    history_rounds=1,
    tail_seconds=8,
    sink_records=200_000,
)
