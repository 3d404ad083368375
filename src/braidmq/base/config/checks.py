"""Checks across the keys of a configuration, and of keys whose features do not exist yet."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Iterator, Mapping

import msgspec

from braidmq.base.config.addresses import Address, clash, is_loopback, parse_address, parse_origin
from braidmq.base.config.keys import Path, dotted, format_value, leaves
from braidmq.base.config.settings import (
    AccessSettings,
    ClusterSettings,
    HistorySettings,
    LinkSettings,
    ListenerSettings,
    Settings,
)
from braidmq.base.errors import ConfigError
from braidmq.base.units import parse_bytes

KINDS = ("tcp", "tls", "ws", "wss")
TLS_KINDS = ("tls", "wss")
WEBSOCKET_KINDS = ("ws", "wss")
TLS_KEYS = ("cert_file", "key_file", "ca_file", "crl_file", "verify", "tls_min", "sni", "user_from_certificate")
WEBSOCKET_KEYS = ("path", "origins")

# Names appear in $SYS topics and in metrics.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", re.ASCII)

# Tables and keys of features that do not exist yet, with the words that name the feature.
_NOT_YET: dict[Path, str] = {
    ("cluster", "store"): "a cluster with several cores",
    ("cluster", "etcd"): "a cluster with several cores",
    ("cluster", "etcd_username"): "a cluster with several cores",
    ("cluster", "etcd_password"): "a cluster with several cores",
    ("cluster", "etcd_ca_file"): "a cluster with several cores",
    ("cluster", "etcd_cert_file"): "a cluster with several cores",
    ("cluster", "etcd_key_file"): "a cluster with several cores",
    ("cluster", "initial_cores"): "a cluster with several cores",
    ("cluster", "rpc_address"): "a cluster with several cores",
    ("registry",): "the cluster's client registry",
    ("links",): "linking of clusters",
}
# The link of the documented sample is accepted, so that a node starts with the unchanged sample.
_SAMPLE_LINKS = {"region-b": LinkSettings(server="b.example:8883", topics=("t/global/#",))}


def check(settings: Settings, given: Mapping[Path, str]) -> list[str]:
    """Raise ConfigError for an invalid configuration; returns notes for the user. ``given``: keys that are set, by origin."""
    for name in ("name", "cluster"):
        _check_name(f"node.{name}", getattr(settings.node, name))
    _check_response_topic(settings.mqtt.response_topic_prefix)
    _check_history(settings.history)
    notes = _check_history_service(settings.history, settings.access) if settings.node.role == "core" else []
    for name in ("password_file", "acl_file"):
        if file := getattr(settings.access, name):
            _check_readable(f"access.{name}", file)
    for kind, name, listener in _enabled(settings):
        notes += _check_listener(kind, name, listener, settings.access)
    notes_to_come = _check_parts_to_come(settings, given)
    _check_cluster(settings, given)
    _check_clashes(settings)
    return notes + notes_to_come


def _enabled(settings: Settings) -> Iterator[tuple[str, str, ListenerSettings]]:
    for kind in KINDS:
        for name, listener in getattr(settings.listeners, kind).items():
            if listener.enabled:
                yield kind, name, listener


# -- listeners ---------------------------------------------------------------------------------------------------------


def _check_listener(kind: str, name: str, listener: ListenerSettings, access: AccessSettings) -> list[str]:
    path: Path = ("listeners", kind, name)
    _check_name(dotted(path), name)
    address = _check_address(dotted((*path, "bind")), listener.bind)
    _check_proxy(path, listener)
    if kind in TLS_KINDS:
        _check_tls(path, listener)
    else:
        # A proxy that terminates TLS may pass on the common name of the client's certificate.
        told_by_proxy = listener.proxy_protocol and listener.user_from_certificate == "cn"
        keys = tuple(key for key in TLS_KEYS if not (told_by_proxy and key == "user_from_certificate"))
        _refuse_given(path, listener, keys, "belongs to tls and wss listeners")
    if kind not in WEBSOCKET_KINDS:
        _refuse_given(path, listener, WEBSOCKET_KEYS, "belongs to ws and wss listeners")
    else:
        _check_websocket(path, listener)
    return _check_who_may_enter(path, address, listener, access)


def _check_who_may_enter(path: Path, address: Address, listener: ListenerSettings, access: AccessSettings) -> list[str]:
    # Behind a proxy the clients are remote, even if the proxy is local.
    if is_loopback(address.host) and not listener.proxy_protocol:
        return []
    if listener.allow_anonymous:
        return [f"{dotted(path)} ({address}) accepts clients without credentials"]
    by_certificate = listener.user_from_certificate and listener.verify == "required"
    if not access.password_file and not by_certificate:
        raise ConfigError(
            dotted(path),
            f"{listener.bind} is reachable from other machines, but no authentication is configured",
            'set access.password_file, or verify = "required" with user_from_certificate, or allow_anonymous = true',
        )
    return []


def _check_proxy(path: Path, listener: ListenerSettings) -> None:
    for network in listener.proxy_peers:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise ConfigError(
                dotted((*path, "proxy_peers")), f"{network!r} is not a network", "write 10.0.0.0/8 or an address"
            ) from None
    if listener.proxy_protocol and not listener.proxy_peers:
        hint = "list the load balancers' addresses"
        raise ConfigError(dotted((*path, "proxy_peers")), "is empty, so every PROXY header would be rejected", hint)


def _check_websocket(path: Path, listener: ListenerSettings) -> None:
    if not re.fullmatch(r"/[^\s?#]*", listener.path):
        raise ConfigError(dotted((*path, "path")), f"{listener.path!r} is not a path", "write something like /mqtt")
    for origin in listener.origins:
        if origin != "*" and parse_origin(origin) is None:
            hint = "write https://app.example, without a path, or * for all pages"
            raise ConfigError(dotted((*path, "origins")), f"{origin!r} is not a web origin", hint)


def _check_tls(path: Path, listener: ListenerSettings) -> None:
    for name in ("cert_file", "key_file"):
        if not getattr(listener, name):
            raise ConfigError(dotted((*path, name)), "is missing; a TLS listener needs a certificate and its key")
    _check_pair((*path, "cert_file"), listener.cert_file, listener.key_file)
    for server_name, certificate in listener.sni.items():
        _check_pair((*path, "sni", server_name, "cert_file"), certificate.cert_file, certificate.key_file)
    for name in ("ca_file", "crl_file"):
        if file := getattr(listener, name):
            _check_readable(dotted((*path, name)), file)
    if listener.verify != "none" and not listener.ca_file:
        raise ConfigError(dotted((*path, "ca_file")), f'is missing; verify = "{listener.verify}" needs it')
    if listener.crl_file and listener.verify == "none":
        raise ConfigError(dotted((*path, "crl_file")), 'has no effect while verify is "none"', 'set verify = "required"')
    if listener.user_from_certificate and listener.verify == "none":
        hint = 'set verify = "required"'
        raise ConfigError(dotted((*path, "user_from_certificate")), 'needs client certificates, but verify is "none"', hint)


def _check_pair(path: Path, cert_file: str, key_file: str) -> None:
    key_path = dotted((*path[:-1], "key_file"))
    _check_readable(dotted(path), cert_file)
    _check_readable(key_path, key_file)

    def refuse_password() -> str:
        # Without a callback OpenSSL would ask on the terminal.
        raise ConfigError(key_path, f"{key_file} is encrypted", "use a key file without a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, refuse_password)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(key_path, f"{key_file} is not the key of {cert_file}") from None
        raise ConfigError(dotted(path), f"{cert_file} and {key_file} are not a PEM certificate and its private key") from None


def _refuse_given(path: Path, listener: ListenerSettings, names: tuple[str, ...], why: str) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(ListenerSettings)}
    for name in names:
        default = fields[name].default
        if getattr(listener, name) != ({} if default is msgspec.NODEFAULT else default):
            raise ConfigError(dotted((*path, name)), why)


def _check_clashes(settings: Settings) -> None:
    seen: list[tuple[str, Address]] = []
    addresses = [(dotted(("listeners", kind, name, "bind")), listener.bind) for kind, name, listener in _enabled(settings)]
    if settings.api.bind:
        addresses.append(("api.bind", settings.api.bind))
    if settings.history.bind and settings.node.role == "core":
        addresses.append(("history.bind", settings.history.bind))
    if settings.cluster.rpc_bind and settings.node.role == "core":
        addresses.append(("cluster.rpc_bind", settings.cluster.rpc_bind))
    for key, bind in addresses:
        address = _check_address(key, bind)
        for other_key, other in seen:
            if clash(address, other):
                raise ConfigError(key, f"{bind} is taken by {other_key} ({other})")
        seen.append((key, address))


# -- history -----------------------------------------------------------------------------------------------------------


def _check_history(history: HistorySettings) -> None:
    """Checks that do not depend on the syntax of topic filters; the log itself checks the filters."""
    _check_size("history.retention_bytes", history.retention_bytes)
    for name, each in history.classes.items():
        key = dotted(("history", "classes", name))
        _check_name(key, name)
        _check_size(f"{key}.retention_bytes", each.retention_bytes)
        if not each.topics:
            raise ConfigError(f"{key}.topics", "is empty", "list the topic filters of the class, or remove the class")


def _check_history_service(history: HistorySettings, access: AccessSettings) -> list[str]:
    if not history.bind:
        return []
    address = _check_address("history.bind", history.bind)
    if bool(history.cert_file) != bool(history.key_file):
        missing = "key_file" if history.cert_file else "cert_file"
        raise ConfigError(f"history.{missing}", "is missing; TLS needs a certificate and its key")
    if history.cert_file:
        _check_pair(("history", "cert_file"), history.cert_file, history.key_file)
    if history.ca_file:
        if not history.cert_file:
            raise ConfigError("history.ca_file", "has no effect without TLS", "set history.cert_file and history.key_file")
        _check_readable("history.ca_file", history.ca_file)
    if is_loopback(address.host):
        return []
    if history.anonymous == "all":
        return [f"history.bind ({address}) lets every client read the history without credentials"]
    if not access.password_file:
        raise ConfigError(
            "history.bind",
            f"{history.bind} is reachable from other machines, but no authentication is configured",
            'set access.password_file, or history.anonymous = "all"',
        )
    return []


# -- the cluster -------------------------------------------------------------------------------------------------------


def _check_cluster(settings: Settings, given: Mapping[Path, str]) -> None:
    cluster = settings.cluster
    _check_cluster_files(cluster)
    if cluster.home_wait <= cluster.lease:
        hint = "a core that restarts within the lease must not cost a publisher its connection"
        raise ConfigError("cluster.home_wait", f"must be longer than cluster.lease ({cluster.lease:g} s)", hint)
    if settings.node.role == "replicant":
        _check_replicant(settings, given)
        return
    if cluster.store == "etcd":
        _check_several_cores(settings)
    if cluster.core_nodes:
        raise ConfigError("cluster.core_nodes", "belongs to replicants, and this node is a core", 'set node.role = "replicant"')
    if not cluster.rpc_bind:
        return
    address = _check_address("cluster.rpc_bind", cluster.rpc_bind)
    if not cluster.secret and not is_loopback(address.host):
        raise ConfigError(
            "cluster.secret",
            f"is missing, and other machines can reach cluster.rpc_bind ({cluster.rpc_bind})",
            "set the same random text on all nodes of the cluster",
        )


def _check_several_cores(settings: Settings) -> None:
    cluster = settings.cluster
    if not cluster.etcd:
        raise ConfigError("cluster.etcd", "is empty", 'list the addresses of etcd, such as ["10.0.0.1:2379"]')
    for each in cluster.etcd:
        address = _check_address("cluster.etcd", each)
        if not address.host or not address.port:
            raise ConfigError("cluster.etcd", f"{each!r} does not name a host and a port", "write 10.0.0.1:2379")
    if not cluster.rpc_bind:
        raise ConfigError("cluster.rpc_bind", "is empty, and other cores must reach this one", "set an address of this host")
    for each in cluster.initial_cores:
        _check_name("cluster.initial_cores", each)
    if cluster.initial_cores and settings.node.name not in cluster.initial_cores:
        hint = "add it, or correct node.name"
        raise ConfigError("cluster.initial_cores", f"does not contain this node ({settings.node.name!r})", hint)
    if cluster.rpc_address:
        address = _check_address("cluster.rpc_address", cluster.rpc_address)
        if not address.host or not address.port:
            hint = "write 10.0.0.1:4370"
            raise ConfigError("cluster.rpc_address", f"{cluster.rpc_address!r} does not name a host and a port", hint)
    for name in ("etcd_ca_file", "etcd_cert_file", "etcd_key_file"):
        if file := getattr(cluster, name):
            _check_readable(f"cluster.{name}", file)


def _check_replicant(settings: Settings, given: Mapping[Path, str]) -> None:
    cluster = settings.cluster
    if not cluster.core_nodes:
        hint = 'list the cluster.rpc_bind of its core, such as ["10.0.0.1:4370"]'
        raise ConfigError("cluster.core_nodes", "is empty, and a replicant needs a core", hint)
    for each in cluster.core_nodes:
        address = _check_address("cluster.core_nodes", each)
        if not address.host or not address.port:
            raise ConfigError("cluster.core_nodes", f"{each!r} does not name a host and a port", "write 10.0.0.1:4370")
        if not cluster.secret and not is_loopback(address.host):
            hint = "set the same random text on all nodes of the cluster"
            raise ConfigError("cluster.secret", f"is missing, and the core {each} is on another machine", hint)
    defaults = {path: value for path, _, value in leaves(Settings())}
    for path, _, value in leaves(settings):
        # Without a database there is nothing to record, to retain or to serve: the core's settings decide.
        if path[0] == "history" and path in given and value != defaults.get(path) and (path[1] != "bind" or value):
            raise ConfigError(
                dotted(path), "belongs to a core: a replicant has no database and keeps no history", "set it on the core"
            )
    if cluster.rpc_bind:
        raise ConfigError("cluster.rpc_bind", "belongs to a core: no node connects to a replicant", "remove it")


def _check_cluster_files(cluster: ClusterSettings) -> None:
    names = ("cert_file", "key_file", "ca_file")
    missing = [name for name in names if not getattr(cluster, name)]
    if len(missing) == len(names):
        return
    if missing:
        raise ConfigError(
            f"cluster.{missing[0]}",
            "is missing; TLS between nodes needs a certificate, its key and the CA of the other nodes",
            "set cert_file, key_file and ca_file, or none of them",
        )
    _check_pair(("cluster", "cert_file"), cluster.cert_file, cluster.key_file)
    _check_readable("cluster.ca_file", cluster.ca_file)


# -- features to come --------------------------------------------------------------------------------------------------


def is_to_come(path: Path) -> bool:
    """Whether a key belongs to a feature that does not exist yet."""
    return any(path[: len(each)] == each for each in _NOT_YET)


def _check_parts_to_come(settings: Settings, given: Mapping[Path, str]) -> list[str]:
    """Accept default values of features that do not exist yet, reject others, and return one note about them."""
    defaults = {path: value for path, _, value in leaves(Settings())}
    sample = {path: value for path, _, value in leaves(Settings(links=_SAMPLE_LINKS)) if path[0] == "links"}
    named: dict[Path, None] = {}
    for path, key, value in leaves(settings):
        part = next((each for each in _NOT_YET if path[: len(each)] == each), None)
        if part is None or path not in given:
            continue
        if value != (defaults | sample).get(path):
            shown = "a value" if key.secret else format_value(value)
            raise ConfigError(
                dotted(path), f"{_NOT_YET[part]} is not supported yet, so {shown} would have no effect", "remove it"
            )
        named[part] = None
    if not named:
        return []
    words = (f"{_NOT_YET[part]} ({dotted(part)}{'.*' if len(part) == 1 else ''})" for part in named)
    return [f"not supported yet and ignored: {', '.join(words)}"]


# -- single values -----------------------------------------------------------------------------------------------------


def _check_name(key: str, name: str) -> None:
    if not _PLAIN_NAME.fullmatch(name):
        raise ConfigError(key, f"{name!r} is not a name", "use at most 64 letters, digits, '_', '.', '@', '-'")


def _check_address(key: str, text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as problem:
        raise ConfigError(key, f"{text!r}: {problem}") from None


def _check_size(key: str, text: str) -> None:
    try:
        parse_bytes(text or "0")
    except ValueError:
        raise ConfigError(key, f"{text!r} is not a size", 'write bytes or a unit: "500MiB", "20GiB"') from None


def _check_readable(key: str, file: str) -> None:
    if not os.path.isfile(file):
        raise ConfigError(key, f"there is no file {file}")
    if not os.access(file, os.R_OK):
        raise ConfigError(key, f"this user cannot read {file}")


def _check_response_topic(prefix: str) -> None:
    if not prefix or any(letter in prefix for letter in "+#\0") or prefix.startswith("$"):
        raise ConfigError("mqtt.response_topic_prefix", f"{prefix!r} is not a valid topic prefix", "no '+', '#' or leading '$'")
