"""The typed shape of the configuration: every key, its type, its default, its bounds and what it means.

Values only; ``sources.py`` decides where they come from (file, environment, run time). The names are those that users write:
``[session] queue_messages_max`` is ``Settings.session.queue_messages_max``, or ``BRAIDMQ_SESSION__QUEUE_MESSAGES_MAX``.
The sentence beside a key is its documentation: ``docs/configuration.md`` is generated from it. ``cluster_settings.py`` has the
tables of a cluster.
"""

from __future__ import annotations

from typing import Annotated, Literal

from braidmq.base.config.cluster_settings import ClusterSettings, RegistrySettings
from braidmq.base.config.tables import Table, key
from braidmq.base.units import Bytes, Seconds

MIB = 1024 * 1024
PACKET_BYTES_MOST = 5 + 268_435_455  # the fixed header and the largest remaining length that MQTT can encode


class NodeSettings(Table, frozen=True):
    """The node's identity and the location of its files."""

    name: Annotated[str, key("name of this node, unique in its cluster", restart=True)] = "core1"
    role: Annotated[Literal["core", "replicant"], key("`core` keeps state, `replicant` carries connections", restart=True)] = (
        "core"
    )
    cluster: Annotated[str, key("name of the cluster", restart=True)] = "braid"
    data_dir: Annotated[str, key("directory for the node's files, created if missing", restart=True)] = "data"


class CertificateSettings(Table, frozen=True):
    """A server certificate for one SNI name."""

    cert_file: Annotated[str, key("certificate chain (PEM) for clients that request this name")]
    key_file: Annotated[str, key("its private key (PEM)")]


class ListenerSettings(Table, frozen=True):
    """One address to listen on. The TLS keys belong to ``tls`` and ``wss``, ``path`` and ``origins`` to ``ws`` and ``wss``."""

    bind: Annotated[str, key("address: `127.0.0.1:1883`, `[::1]:1883`, or `:1883` for all addresses", restart=True)]
    enabled: Annotated[bool, key("false: the node ignores this listener", restart=True)] = True
    connections_max: Annotated[int, key("maximum number of simultaneous connections", least=1)] = 1_000_000
    allow_anonymous: Annotated[
        bool | None,
        key("accept clients without credentials; unset: only on a loopback address"),
    ] = None
    proxy_protocol: Annotated[bool, key("expect a PROXY protocol header (v1 or v2) from `proxy_peers`", restart=True)] = False
    proxy_peers: Annotated[
        tuple[str, ...], key("networks whose PROXY headers are trusted; other peers are rejected", restart=True)
    ] = ()
    cert_file: Annotated[str, key("certificate chain (PEM); reread on reload")] = ""
    key_file: Annotated[str, key("private key (PEM); reread on reload")] = ""
    ca_file: Annotated[str, key("CA certificates (PEM) that verify client certificates")] = ""
    crl_file: Annotated[str, key("revocation lists (PEM) for client certificates")] = ""
    verify: Annotated[Literal["none", "optional", "required"], key("whether clients must present a certificate")] = "none"
    tls_min: Annotated[Literal["1.2", "1.3"], key("oldest TLS version accepted")] = "1.2"
    sni: Annotated[
        dict[str, CertificateSettings], key("further certificates, by the server name (SNI) that the client requests")
    ] = {}
    user_from_certificate: Annotated[
        Literal["", "cn", "dn"], key("take the user name from the client certificate: common name or distinguished name")
    ] = ""
    path: Annotated[str, key("path of the WebSocket", restart=True)] = "/mqtt"
    origins: Annotated[
        tuple[str, ...],
        key("web origins that may connect; `*`: all; empty: the same host and port, and on loopback any page of this machine"),
    ] = ()


class Listeners(Table, frozen=True):
    """All listeners by kind and name."""

    tcp: dict[str, ListenerSettings] = {}
    tls: dict[str, ListenerSettings] = {}
    ws: dict[str, ListenerSettings] = {}
    wss: dict[str, ListenerSettings] = {}


class MqttSettings(Table, frozen=True):
    """Protocol limits that MQTT leaves to the server."""

    # A payload of 1 MiB, plus the longest topic or properties of that size.
    packet_bytes_max: Annotated[Bytes, key("largest packet accepted from a client", least=64, most=PACKET_BYTES_MOST)] = Bytes(
        MIB + 64 * 1024
    )
    receive_maximum: Annotated[
        int, key("QoS 1 and 2 messages a client may have in flight to the broker", least=1, most=65535)
    ] = 1000
    inflight_max: Annotated[
        int, key("maximum QoS 1 and 2 messages in flight to one client; a client may set less", least=1, most=65535)
    ] = 1000
    topic_alias_maximum: Annotated[int, key("topic aliases a client may use", least=0, most=65535)] = 64
    topic_alias_maximum_out: Annotated[
        int, key("maximum topic aliases the broker uses to one client; a client may set less", least=0, most=65535)
    ] = 64
    topic_levels_max: Annotated[int, key("maximum levels of a topic name or filter", least=1, most=32768)] = 128
    client_id_bytes_max: Annotated[int, key("maximum bytes of a client identifier", least=23, most=65535)] = 1024
    keep_alive_max: Annotated[
        int, key("longest keep-alive in seconds, sent as Server Keep Alive; 0: the client decides", least=0, most=65535)
    ] = 0
    keep_alive_factor: Annotated[
        float, key("close a connection that is silent for this many keep-alive periods", least=1, most=10)
    ] = 1.5
    check_payload_format: Annotated[bool, key("reject messages marked as UTF-8 whose payload is not valid UTF-8")] = False
    allow_bridge_bit: Annotated[bool, key("accept the protocol level bit that Mosquitto's bridges set")] = False
    response_topic_prefix: Annotated[str, key("prefix of the response topics offered to clients that request one")] = "response/"
    deny_action: Annotated[
        Literal["ignore", "disconnect"], key("response to an unauthorised PUBLISH from an MQTT 3 client")
    ] = "ignore"  # fmt: skip


class SessionSettings(Table, frozen=True):
    """Sessions, their queues and their limits."""

    expiry_max: Annotated[Seconds, key("longest session expiry granted")] = Seconds(7 * 86400)
    expiry_mqtt3: Annotated[Seconds, key("session expiry of MQTT 3.1 and 3.1.1 clients with clean session 0")] = Seconds(
        7 * 86400
    )
    sessions_max: Annotated[int, key("maximum sessions on this node, connected or not", least=1)] = 1_000_000
    subscriptions_max: Annotated[int, key("maximum subscriptions per client", least=1)] = 10_000
    filter_levels_max: Annotated[int, key("maximum levels of all topic filters of one client together", least=128)] = 200_000
    filter_bytes_max: Annotated[Bytes, key("maximum bytes of all topic filters of one client together", least=65536)] = Bytes(
        4 * MIB
    )
    queue_messages_max: Annotated[int, key("maximum messages queued for one client", least=1)] = 10_000
    queue_bytes_max: Annotated[Bytes, key("maximum bytes queued for one client and in flight to it", least=1024)] = Bytes(
        16 * MIB
    )
    queue_wait: Annotated[
        Seconds,
        key("how long publishers wait for a connected subscriber whose queue is full before the newest message is dropped"),
    ] = Seconds(5)
    queue_qos0: Annotated[bool, key("also queue QoS 0 messages for clients that are offline")] = False


class LimitSettings(Table, frozen=True):
    """Limits that protect clients from each other; for rates, 0 means no limit."""

    connect_timeout: Annotated[Seconds, key("time a new connection has to send its CONNECT", least=0.1, most=3600)] = Seconds(10)
    handshakes_max: Annotated[
        int, key("maximum simultaneous TLS handshakes per listener; beyond it, the oldest is dropped", least=8)
    ] = 500
    preauth_packet_bytes: Annotated[
        Bytes, key("largest packet of a client not yet authenticated", least=64, most=PACKET_BYTES_MOST)
    ] = Bytes(64 * 1024)
    connections_per_s: Annotated[float, key("maximum new connections per second on the node; 0: no limit", least=0)] = 0.0
    messages_per_s: Annotated[float, key("maximum messages per second from one client; 0: no limit", least=0)] = 0.0
    bytes_per_s: Annotated[float, key("maximum published bytes per second from one client; 0: no limit", least=0)] = 0.0
    outbox_bytes_max: Annotated[Bytes, key("maximum unsent bytes per slow client; beyond it, QoS 0 is dropped", least=4096)] = (
        Bytes(MIB)
    )
    outboxes_bytes_max: Annotated[
        Bytes, key("maximum unsent bytes of all slow clients together; beyond it, QoS 0 is dropped", least=MIB)
    ] = Bytes(256 * MIB)
    parts_bytes_max: Annotated[
        Bytes,
        key(
            "maximum bytes of incomplete packets from all clients; beyond it, the connection with the oldest is closed", least=MIB
        ),
    ] = Bytes(256 * MIB)
    held_bytes_max: Annotated[
        Bytes, key("maximum bytes in memory for offline and slow clients: messages in flight and queued", least=MIB)
    ] = Bytes(512 * MIB)
    authentications_max: Annotated[int, key("maximum CONNECTs that wait for an authenticator", least=1)] = 1000


class AccessSettings(Table, frozen=True):
    """Authentication and authorisation."""

    password_file: Annotated[
        str, key("file of users and password hashes, written by `braidmq passwd`; empty: none", per_node=True)
    ] = ""
    acl_file: Annotated[
        str, key("file of access rules for publishing and subscribing; empty: everything is allowed", per_node=True)
    ] = ""
    acl_no_match: Annotated[Literal["allow", "deny"], key("decision for topics that no rule in the ACL file matches")] = "deny"
    cache_ttl: Annotated[Seconds, key("how long a verified password is cached")] = Seconds(600)
    ban_failures: Annotated[int, key("failed logins within `ban_window` after which an address is banned; 0: never", least=0)] = (
        20
    )
    ban_window: Annotated[Seconds, key("time window in which failed logins are counted")] = Seconds(60)
    ban_duration: Annotated[Seconds, key("how long an address stays banned")] = Seconds(300)


class RetainedSettings(Table, frozen=True):
    """Limits of the retained message store; 0 means no limit."""

    messages_max: Annotated[int, key("maximum retained messages; 0: no limit", least=0)] = 0
    bytes_max: Annotated[
        Bytes, key("maximum bytes of all retained messages, including their index in memory; 0: no limit")
    ] = Bytes(1024 * MIB)  # fmt: skip
    payload_bytes_max: Annotated[Bytes, key("largest payload of a retained message; 0: no limit")] = Bytes(MIB)
    recheck_publisher: Annotated[bool, key("withhold a retained message if its publisher may no longer publish to the topic")] = (
        True
    )


class SharedSettings(Table, frozen=True):
    """How a shared subscription selects a member."""

    strategy: Annotated[
        Literal["round_robin", "random", "sticky", "hash_clientid", "hash_topic"],
        key("how the member for the next message is selected"),
    ] = "round_robin"


class DelayedSettings(Table, frozen=True):
    """Limits of ``$delayed/SECONDS/topic``."""

    messages_max: Annotated[int, key("maximum delayed messages on this node", least=0)] = 100_000
    bytes_max: Annotated[Bytes, key("maximum bytes of all delayed messages, which are stored on disk; 0: no limit")] = Bytes(
        1024 * MIB
    )
    delay_max: Annotated[Seconds, key("longest delay")] = Seconds(49 * 86400)


class SysSettings(Table, frozen=True):
    """The ``$SYS`` topics."""

    interval: Annotated[Seconds, key("interval between `$SYS` updates; 0: none")] = Seconds(10)
    presence: Annotated[bool, key("publish client connects and disconnects below `$SYS/brokers/`")] = True


class LogSettings(Table, frozen=True):
    """Log level and format."""

    level: Annotated[Literal["debug", "info", "warning", "error"], key("lowest severity that is logged")] = "info"
    format: Annotated[Literal["text", "json"], key("one line of text or one JSON object per event")] = "text"
    drops: Annotated[bool, key("log each dropped message with client, topic and reason")] = False
    lines_per_s_max: Annotated[int, key("maximum lines of one kind per second; further lines are only counted", least=1)] = 100


class HooksSettings(Table, frozen=True):
    """Python hooks that the broker calls at defined points."""

    load: Annotated[
        tuple[str, ...], key("hooks as `package.module:Class`, in the order in which they are called", restart=True)
    ] = ()


class ApiSettings(Table, frozen=True):
    """The HTTP listener for metrics and status."""

    bind: Annotated[str, key("address of `/metrics`, `/status` and `/ready`; empty: none", restart=True)] = "127.0.0.1:18083"
    hosts: Annotated[
        tuple[str, ...],
        key(
            "accepted `Host` names, without ports, in addition to `localhost` and loopback addresses; "
            "empty: no others on a loopback address, any name elsewhere",
            restart=True,
        ),
    ] = ()


class HistoryClassSettings(Table, frozen=True):
    """Recorded topics with a retention of their own. The filters of two classes must not overlap."""

    topics: Annotated[tuple[str, ...], key("topic filters that belong to the class", restart=True)]
    retention: Annotated[Seconds, key("how long records of this class are kept", restart=True)]
    retention_bytes: Annotated[str, key("maximum size of the records of this class; empty: no limit", restart=True)] = ""


class HistorySettings(Table, frozen=True):
    """The durable log."""

    topics: Annotated[tuple[str, ...], key("topic filters whose messages are recorded", restart=True)] = ("#",)
    min_qos: Annotated[int, key("lowest QoS that is recorded", least=0, most=2, restart=True)] = 1
    retention: Annotated[Seconds, key("how long records are kept", restart=True)] = Seconds(7 * 86400)
    retention_bytes: Annotated[str, key("maximum size of the log; empty: no limit", restart=True)] = ""
    shards: Annotated[
        int,
        key(
            "number of shards of the log, fixed when `data_dir` is created; by default 12 with several cores",
            least=1,
            most=4096,
            restart=True,
            per_node=True,
        ),
    ] = 4
    layout: Annotated[Literal["learned", "hashed"], key("order of the topics in the log", restart=True)] = "learned"
    durability: Annotated[
        Literal["fsync", "os"], key("when a message counts as stored: on disk, or handed to the operating system", restart=True)
    ] = "fsync"
    relearn: Annotated[bool, key("start a new generation when the topics learned so far allow a better layout", restart=True)] = (
        False
    )
    bind: Annotated[str, key("address of the history service (Arrow Flight); empty: no service", restart=True, per_node=True)] = (
        "127.0.0.1:8815"
    )
    address: Annotated[
        str,
        key(
            "address to which other cores send readers of this core's shards; empty: that of `bind`", restart=True, per_node=True
        ),
    ] = ""
    cert_file: Annotated[
        str, key("certificate chain (PEM) of the history service; enables TLS; reread on reload", per_node=True)
    ] = ""
    key_file: Annotated[str, key("its private key (PEM); reread on reload", per_node=True)] = ""
    ca_file: Annotated[
        str, key("CA certificates (PEM) that verify readers' certificates; empty: readers need no certificate", per_node=True)
    ] = ""
    anonymous: Annotated[
        Literal["loopback", "all", "none"],
        key("accept readers without credentials: only if `bind` is a loopback address, always, or never", restart=True),
    ] = "loopback"
    streams_max: Annotated[int, key("maximum open streams per reader (user, or host if anonymous)", least=1, restart=True)] = 16
    named_readers_max: Annotated[
        int, key("maximum named readers per user, and of all anonymous readers together", least=0, restart=True)
    ] = 1000
    reader_bytes_per_s_max: Annotated[
        Bytes, key("maximum bytes per second to one reader; 0: no limit", least=0, restart=True)
    ] = Bytes(0)
    classes: dict[str, HistoryClassSettings] = {}


class LinkSettings(Table, frozen=True):
    """A link to another cluster."""

    server: Annotated[str, key("address of the other cluster")]
    topics: Annotated[tuple[str, ...], key("topic filters to fetch from there")] = ()


class Settings(Table, frozen=True):
    """The whole configuration of a node."""

    node: NodeSettings = NodeSettings()
    listeners: Listeners = Listeners(
        tcp={"default": ListenerSettings(bind="127.0.0.1:1883")},
        ws={"default": ListenerSettings(bind="127.0.0.1:8083")},
    )
    mqtt: MqttSettings = MqttSettings()
    session: SessionSettings = SessionSettings()
    limits: LimitSettings = LimitSettings()
    access: AccessSettings = AccessSettings()
    retained: RetainedSettings = RetainedSettings()
    shared: SharedSettings = SharedSettings()
    delayed: DelayedSettings = DelayedSettings()
    sys: SysSettings = SysSettings()
    log: LogSettings = LogSettings()
    api: ApiSettings = ApiSettings()
    hooks: HooksSettings = HooksSettings()
    history: HistorySettings = HistorySettings()
    cluster: ClusterSettings = ClusterSettings()
    registry: RegistrySettings = RegistrySettings()
    links: dict[str, LinkSettings] = {}
