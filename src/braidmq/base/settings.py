"""The typed shape of the configuration: every key, its type, its default, its bounds and what it means.

Values only. Where they come from (file, environment, run time) is the business of ``config.py``. The names are those a user
writes: ``[session] queue_messages_max`` is ``Settings.session.queue_messages_max``, or ``BRAIDMQ_SESSION__QUEUE_MESSAGES_MAX``.
The sentence beside a key is its documentation: ``docs/configuration.md`` is made from it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from braidmq.base.units import Bytes, Seconds

MIB = 1024 * 1024
PACKET_BYTES_MOST = 5 + 268_435_455  # the fixed header and the largest remaining length that MQTT can write


def key(
    meaning: str, *, least: float | None = None, most: float | None = None, restart: bool = False, secret: bool = False
) -> msgspec.Meta:
    """What is to be known of a key beside its type; ``restart``: a change needs one; ``secret``: its value is never shown."""
    return msgspec.Meta(description=meaning, extra={"least": least, "most": most, "restart": restart, "secret": secret})


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A TOML table; unknown keys are refused."""


class NodeSettings(_Table, frozen=True):
    """Who this node is and where it keeps its files."""

    name: Annotated[str, key("name of this node, unique in its cluster", restart=True)] = "core1"
    role: Annotated[Literal["core", "replicant"], key("`core` keeps state, `replicant` carries connections", restart=True)] = (
        "core"
    )
    cluster: Annotated[str, key("name of the cluster", restart=True)] = "braid"
    data_dir: Annotated[str, key("folder for the node's files, made if missing", restart=True)] = "data"


class CertificateSettings(_Table, frozen=True):
    """A server certificate for one SNI name."""

    cert_file: Annotated[str, key("certificate chain (PEM) shown to clients that ask for this name")]
    key_file: Annotated[str, key("its private key (PEM)")]


class ListenerSettings(_Table, frozen=True):
    """One address to listen on. The TLS keys belong to ``tls`` and ``wss``, ``path`` and ``origins`` to ``ws`` and ``wss``."""

    bind: Annotated[str, key("address: `127.0.0.1:1883`, `[::1]:1883`, or `:1883` for all addresses", restart=True)]
    enabled: Annotated[bool, key("false: as if it were not there", restart=True)] = True
    connections_max: Annotated[int, key("connections at once", least=1)] = 1_000_000
    allow_anonymous: Annotated[
        bool | None,
        key("let clients in without credentials; not given: on a loopback address only"),
    ] = None
    proxy_protocol: Annotated[bool, key("expect a PROXY protocol header (v1 or v2) from `proxy_peers`", restart=True)] = False
    proxy_peers: Annotated[tuple[str, ...], key("networks whose PROXY header is believed; others are refused", restart=True)] = ()
    cert_file: Annotated[str, key("certificate chain (PEM); read again on reload")] = ""
    key_file: Annotated[str, key("private key (PEM); read again on reload")] = ""
    ca_file: Annotated[str, key("certificates (PEM) that client certificates must descend from")] = ""
    crl_file: Annotated[str, key("revoked client certificates (PEM)")] = ""
    verify: Annotated[Literal["none", "optional", "required"], key("ask clients for a certificate")] = "none"
    tls_min: Annotated[Literal["1.2", "1.3"], key("oldest TLS version accepted")] = "1.2"
    sni: Annotated[dict[str, CertificateSettings], key("more certificates by the name that the client asks for")] = {}
    user_from_certificate: Annotated[
        Literal["", "cn", "dn"], key("take the user name from the client certificate: common name or distinguished name")
    ] = ""
    path: Annotated[str, key("path of the WebSocket", restart=True)] = "/mqtt"
    origins: Annotated[
        tuple[str, ...],
        key("web pages that may connect, `*`: all; empty: those of the same host and port, on loopback those of this machine"),
    ] = ()


class Listeners(_Table, frozen=True):
    """All listeners by kind and name."""

    tcp: dict[str, ListenerSettings] = {}
    tls: dict[str, ListenerSettings] = {}
    ws: dict[str, ListenerSettings] = {}
    wss: dict[str, ListenerSettings] = {}


class MqttSettings(_Table, frozen=True):
    """What the protocol lets a server decide."""

    packet_bytes_max: Annotated[Bytes, key("largest packet accepted from a client", least=64, most=PACKET_BYTES_MOST)] = Bytes(
        MIB
    )
    receive_maximum: Annotated[int, key("QoS 1 and 2 messages a client may have in flight towards us", least=1, most=65535)] = (
        1000
    )
    inflight_max: Annotated[
        int, key("QoS 1 and 2 messages in flight towards one client, if it allows as many", least=1, most=65535)
    ] = 1000
    topic_alias_maximum: Annotated[int, key("topic aliases a client may use", least=0, most=65535)] = 64
    topic_alias_maximum_out: Annotated[
        int, key("topic aliases we use towards one client, if it allows them", least=0, most=65535)
    ] = 64
    topic_levels_max: Annotated[int, key("levels of a topic name or filter", least=1, most=32768)] = 128
    client_id_bytes_max: Annotated[int, key("length of a client identifier", least=23, most=65535)] = 1024
    keep_alive_max: Annotated[
        int, key("longest keep-alive in seconds, told as Server Keep Alive; 0: whatever the client asks", least=0, most=65535)
    ] = 0
    keep_alive_factor: Annotated[
        float, key("a client is gone after this many keep-alive periods of silence", least=1, most=10)
    ] = 1.5
    check_payload_format: Annotated[bool, key("refuse a payload that says it is UTF-8 and is not")] = False
    allow_bridge_bit: Annotated[bool, key("accept the protocol level bit that Mosquitto's bridges set")] = False
    response_topic_prefix: Annotated[str, key("start of the response topics offered to clients that ask for one")] = "response/"
    deny_action: Annotated[
        Literal["ignore", "disconnect"], key("what an MQTT 3 client's unauthorised PUBLISH leads to")
    ] = "ignore"  # fmt: skip


class SessionSettings(_Table, frozen=True):
    """What outlives a connection, and how much of it."""

    expiry_max: Annotated[Seconds, key("longest session expiry granted")] = Seconds(7 * 86400)
    expiry_mqtt3: Annotated[Seconds, key("session expiry of MQTT 3.1 and 3.1.1 clients with clean session 0")] = Seconds(
        7 * 86400
    )
    sessions_max: Annotated[int, key("sessions on this node, connected or waiting", least=1)] = 1_000_000
    subscriptions_max: Annotated[int, key("subscriptions of one client", least=1)] = 10_000
    queue_messages_max: Annotated[int, key("messages waiting for one client", least=1)] = 10_000
    queue_bytes_max: Annotated[Bytes, key("bytes waiting for one client, and in flight to it", least=1024)] = Bytes(16 * MIB)
    queue_wait: Annotated[
        Seconds, key("how long publishers wait for a full queue of a connected subscriber before the newest message is dropped")
    ] = Seconds(5)
    queue_qos0: Annotated[bool, key("keep QoS 0 messages for absent clients too")] = False


class LimitSettings(_Table, frozen=True):
    """Bounds that keep one client from hurting the others; 0 means no limit for rates."""

    connect_timeout: Annotated[Seconds, key("time for a new connection to send its CONNECT", least=0.1, most=3600)] = Seconds(10)
    preauth_packet_bytes: Annotated[Bytes, key("largest packet of a client not yet let in", least=64, most=PACKET_BYTES_MOST)] = (
        Bytes(64 * 1024)
    )
    connections_per_s: Annotated[float, key("new connections of the whole node; 0: no limit", least=0)] = 0.0
    messages_per_s: Annotated[float, key("messages published by one client; 0: no limit", least=0)] = 0.0
    bytes_per_s: Annotated[float, key("bytes published by one client; 0: no limit", least=0)] = 0.0
    outbox_bytes_max: Annotated[Bytes, key("bytes not yet taken by a slow client; QoS 0 beyond it is dropped", least=4096)] = (
        Bytes(MIB)
    )
    authentications_max: Annotated[int, key("CONNECTs waiting for an authenticator at once", least=1)] = 1000


class AccessSettings(_Table, frozen=True):
    """Who may connect and what they may do."""

    password_file: Annotated[str, key("users and password hashes, made by `braidmq passwd`; empty: none")] = ""
    acl_file: Annotated[str, key("who may publish and subscribe where; empty: everybody everywhere")] = ""
    acl_no_match: Annotated[Literal["allow", "deny"], key("what holds where the ACL file says nothing")] = "deny"
    cache_ttl: Annotated[Seconds, key("how long a verified password is remembered")] = Seconds(600)
    ban_failures: Annotated[int, key("failed logins within `ban_window` that ban an address; 0: never", least=0)] = 20
    ban_window: Annotated[Seconds, key("time within which failures are counted")] = Seconds(60)
    ban_duration: Annotated[Seconds, key("how long such a ban lasts")] = Seconds(300)


class RetainedSettings(_Table, frozen=True):
    """Bounds of the retained store; 0 means no limit."""

    messages_max: Annotated[int, key("retained messages; 0: no limit", least=0)] = 0
    payload_bytes_max: Annotated[Bytes, key("largest payload that is retained; 0: no limit")] = Bytes(MIB)
    recheck_publisher: Annotated[bool, key("do not serve a retained message whose publisher may no longer publish there")] = True


class SharedSettings(_Table, frozen=True):
    """How a shared subscription chooses its member."""

    strategy: Annotated[
        Literal["round_robin", "random", "sticky", "hash_clientid", "hash_topic"], key("which member gets the next message")
    ] = "round_robin"


class DelayedSettings(_Table, frozen=True):
    """Bounds of ``$delayed/SECONDS/topic``."""

    messages_max: Annotated[int, key("delayed messages waiting on this node", least=0)] = 100_000
    delay_max: Annotated[Seconds, key("longest delay")] = Seconds(49 * 86400)


class SysSettings(_Table, frozen=True):
    """The ``$SYS`` topics."""

    interval: Annotated[Seconds, key("time between two rounds of `$SYS` figures; 0: none")] = Seconds(10)
    presence: Annotated[bool, key("publish clients' coming and going below `$SYS/brokers/`")] = True


class LogSettings(_Table, frozen=True):
    """What is logged and how."""

    level: Annotated[Literal["debug", "info", "warning", "error"], key("least important lines that are written")] = "info"
    format: Annotated[Literal["text", "json"], key("one line of text or one JSON object per event")] = "text"
    drops: Annotated[bool, key("a line for each dropped message, with client, topic and reason")] = False
    lines_per_s_max: Annotated[int, key("lines of one kind per second; the rest is counted", least=1)] = 100


class HooksSettings(_Table, frozen=True):
    """Python code that is asked or told at the broker's turning points."""

    load: Annotated[
        tuple[str, ...], key("hooks as `package.module:Class`, in the order in which they are asked", restart=True)
    ] = ()


class ApiSettings(_Table, frozen=True):
    """The HTTP listener for metrics and status."""

    bind: Annotated[str, key("address of `/metrics`, `/status` and `/ready`; empty: none", restart=True)] = "127.0.0.1:18083"


class HistoryClassSettings(_Table, frozen=True):
    """Recorded topics with a retention of their own. The filters of two classes must not overlap."""

    topics: Annotated[tuple[str, ...], key("topic filters that belong to the class", restart=True)]
    retention: Annotated[Seconds, key("how long their records are kept", restart=True)]
    retention_bytes: Annotated[str, key("how much of them is kept; empty: no limit", restart=True)] = ""


class HistorySettings(_Table, frozen=True):
    """The durable log."""

    topics: Annotated[tuple[str, ...], key("topic filters whose messages are recorded", restart=True)] = ("#",)
    min_qos: Annotated[int, key("least QoS that is recorded", least=0, most=2, restart=True)] = 1
    retention: Annotated[Seconds, key("how long records are kept", restart=True)] = Seconds(7 * 86400)
    retention_bytes: Annotated[str, key("how much is kept; empty: no limit", restart=True)] = ""
    shards: Annotated[int, key("parts of the log, fixed when `data_dir` is made", least=1, most=4096, restart=True)] = 4
    layout: Annotated[Literal["learned", "hashed"], key("order of the topics in the log", restart=True)] = "learned"
    durability: Annotated[Literal["fsync", "os"], key("when a message counts as stored", restart=True)] = "fsync"
    relearn: Annotated[
        bool, key("begin a new generation when what was learned of the topics allows a better layout", restart=True)
    ] = False
    bind: Annotated[str, key("address of the history service (Arrow Flight); empty: there is none", restart=True)] = (
        "127.0.0.1:8815"
    )
    cert_file: Annotated[
        str, key("certificate chain (PEM) of the history service, which then speaks TLS; read again on reload")
    ] = ""
    key_file: Annotated[str, key("its private key (PEM); read again on reload")] = ""
    ca_file: Annotated[
        str, key("certificates (PEM) that its readers' certificates must descend from; empty: none is asked for")
    ] = ""
    anonymous: Annotated[
        Literal["loopback", "all", "none"],
        key("readers let in without credentials: if `bind` is a loopback address, in any case, never", restart=True),
    ] = "loopback"
    streams_max: Annotated[int, key("streams of one reader (user, or host without one) at a time", least=1, restart=True)] = 16
    reader_bytes_per_s_max: Annotated[Bytes, key("bytes a second to one reader; 0: no limit", least=0, restart=True)] = Bytes(0)
    classes: dict[str, HistoryClassSettings] = {}


class ClusterSettings(_Table, frozen=True):
    """How this node finds and trusts the others."""

    store: Annotated[Literal["embedded", "etcd"], key("where the cluster's tables are", restart=True)] = "embedded"
    etcd: Annotated[tuple[str, ...], key("addresses of etcd", restart=True)] = ("127.0.0.1:2379",)
    rpc_bind: Annotated[str, key("address for other nodes", restart=True)] = "127.0.0.1:4370"
    core_nodes: Annotated[tuple[str, ...], key("for a replicant: where its cores are", restart=True)] = ()
    secret: Annotated[str, key("shared by the nodes; required beyond loopback", restart=True, secret=True)] = ""


class RegistrySettings(_Table, frozen=True):
    """How the owner of a client id is decided."""

    mode: Annotated[Literal["linear", "both", "eventual"], key("how nodes agree on who owns a client id", restart=True)] = (
        "linear"
    )


class LinkSettings(_Table, frozen=True):
    """A link to another cluster."""

    server: Annotated[str, key("address of the other cluster")]
    topics: Annotated[tuple[str, ...], key("topic filters to fetch from there")] = ()


class Settings(_Table, frozen=True):
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
