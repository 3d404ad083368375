"""Tables of Mosquitto options that map to one key each. ``listeners`` and ``convert`` handle listeners and files."""

from __future__ import annotations

from typing import Final

import msgspec

Path = tuple[str, ...]


class Number(msgspec.Struct, frozen=True):
    """An option with a number that becomes a key; ``zero`` is what Mosquitto's 0 (no limit) becomes."""

    key: Path
    zero: int | None = None
    note: str = ""


NUMBERS: Final[dict[str, Number]] = {
    "max_packet_size": Number(("mqtt", "packet_bytes_max"), zero=268_435_455),
    "max_inflight_messages": Number(("mqtt", "inflight_max"), zero=65_535),
    "max_queued_messages": Number(("session", "queue_messages_max"), zero=1_000_000),
    "max_queued_bytes": Number(("session", "queue_bytes_max"), zero=1 << 30),
    "max_keepalive": Number(("mqtt", "keep_alive_max")),
    "max_topic_alias": Number(("mqtt", "topic_alias_maximum"), note="for all listeners"),
    "sys_interval": Number(("sys", "interval")),
}

FLAGS: Final[dict[str, Path]] = {
    "queue_qos0_messages": ("session", "queue_qos0"),
    "check_retain_source": ("retained", "recheck_publisher"),
}

# Options of a listener, converted by ``listeners``; those of TLS have an effect only with a certificate.
TLS_OPTIONS: Final = frozenset(
    {
        "cafile",
        "capath",
        "certfile",
        "keyfile",
        "crlfile",
        "require_certificate",
        "use_identity_as_username",
        "use_subject_as_username",
        "tls_version",
    }
)
LISTENER_OPTIONS: Final = TLS_OPTIONS | {
    "bind_address",
    "port",
    "protocol",
    "max_connections",
    "socket_domain",
    "mount_point",
    "bind_interface",
    "psk_hint",
    "enable_proxy_protocol",
    "listener_allow_anonymous",
}

# With ``per_listener_settings true`` these apply to one listener, otherwise to all.
ACCESS_OPTIONS: Final = frozenset({"password_file", "acl_file", "allow_anonymous"})

PLUGIN_OPTIONS: Final = frozenset({"auth_plugin", "plugin", "global_plugin", "plugin_load", "plugin_use"})

BRIDGE_OPTIONS: Final = frozenset(
    {
        "connection",
        "address",
        "addresses",
        "topic",
        "cleansession",
        "clientid",
        "idle_timeout",
        "keepalive_interval",
        "local_cleansession",
        "local_clientid",
        "local_password",
        "local_username",
        "notifications",
        "notifications_local_only",
        "notification_topic",
        "password",
        "remote_clientid",
        "remote_password",
        "remote_username",
        "restart_timeout",
        "round_robin",
        "start_type",
        "threshold",
        "try_private",
        "username",
    }
)

_STORAGE = "sessions and retained messages of Mosquitto's database are not imported"
_LOGGING = "logs go to standard error; see [log]"
_TLS = "the TLS library's default is used"

# Options without a counterpart, with the reason or what to use instead.
WITHOUT_COUNTERPART: Final[dict[str, str]] = {
    "allow_duplicate_messages": "overlapping subscriptions follow the MQTT specification",
    "allow_zero_length_clientid": "clients with an empty client id are always assigned one",
    "auth_plugin_deny_special_chars": "names that contain + # / never match patterns",
    "auto_id_prefix": "assigned client ids have their own form",
    "autosave_interval": _STORAGE,
    "autosave_on_changes": _STORAGE,
    "ciphers": _TLS,
    "ciphers_tls1.3": _TLS,
    "clientid_prefixes": "use patterns in the ACL file",
    "connection_messages": _LOGGING,
    "dhparamfile": _TLS,
    "http_dir": "braidmq serves no files",
    "log_dest": _LOGGING,
    "log_facility": _LOGGING,
    "log_timestamp": _LOGGING,
    "log_timestamp_format": _LOGGING,
    "max_inflight_bytes": "mqtt.inflight_max limits their number; session.queue_bytes_max limits bytes queued and in flight",
    "max_qos": "every listener supports QoS 0, 1 and 2",
    "memory_limit": "set limits in [session] and [limits], or limit the process in its service manager",
    "persistence": _STORAGE,
    "persistence_file": _STORAGE,
    "persistence_location": _STORAGE,
    "pid_file": "the service manager tracks the process",
    "psk_file": "pre-shared keys are not supported; use certificates or passwords",
    "retain_available": "retained messages are always available; forbid them by ACL",
    "retain_expiry_interval": "publishers set the message expiry (MQTT 5)",
    "set_tcp_nodelay": "always on",
    "tls_engine": _TLS,
    "tls_engine_kpass_sha1": _TLS,
    "tls_keyform": "keys are PEM files",
    "upgrade_outgoing_qos": "a message keeps its QoS, as MQTT requires",
    "use_username_as_clientid": "clients choose their client ids; use %u in the ACL file to tie topics to users",
    "user": "start braidmq as the user it should run as",
    "websockets_headers_size": "braidmq has a fixed limit for headers",
    "websockets_log_level": _LOGGING,
    "websockets_origin": "set `origins` of the listener; by default only pages of the same host and port may connect",
}
