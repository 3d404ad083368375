"""Checks across the keys of a configuration, and of keys whose features do not exist yet."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping

import msgspec

from braidmq.base.config.addresses import Address, clash, is_loopback, parse_origin
from braidmq.base.config.cluster_checks import check_cluster
from braidmq.base.config.keys import Path, dotted, format_value, leaves
from braidmq.base.config.settings import (
    AccessSettings,
    HistorySettings,
    LinkSettings,
    ListenerSettings,
    Settings,
)
from braidmq.base.config.single_values import check_address, check_name, check_pair, check_readable, check_size, check_target
from braidmq.base.errors import ConfigError

KINDS = ("tcp", "tls", "ws", "wss")
TLS_KINDS = ("tls", "wss")
WEBSOCKET_KINDS = ("ws", "wss")
TLS_KEYS = ("cert_file", "key_file", "ca_file", "crl_file", "verify", "tls_min", "sni", "user_from_certificate")
WEBSOCKET_KEYS = ("path", "origins")

# Tables and keys of features that do not exist yet, with the words that name the feature.
_NOT_YET: dict[Path, str] = {
    ("links",): "linking of clusters",
}
# The link of the documented sample is accepted, so that a node starts with the unchanged sample.
_SAMPLE_LINKS = {"region-b": LinkSettings(server="b.example:8883", topics=("t/global/#",))}


def check(settings: Settings, given: Mapping[Path, str]) -> list[str]:
    """Raise ConfigError for an invalid configuration; returns notes for the user. ``given``: keys that are set, by origin."""
    for name in ("name", "cluster"):
        check_name(f"node.{name}", getattr(settings.node, name))
    _check_response_topic(settings.mqtt.response_topic_prefix)
    _check_history(settings.history)
    notes = _check_history_service(settings.history, settings.access) if settings.node.role == "core" else []
    for name in ("password_file", "acl_file"):
        if file := getattr(settings.access, name):
            check_readable(f"access.{name}", file)
    for kind, name, listener in _enabled(settings):
        notes += _check_listener(kind, name, listener, settings.access)
    notes_to_come = _check_parts_to_come(settings, given)
    notes += check_cluster(settings, given)
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
    check_name(dotted(path), name)
    address = check_address(dotted((*path, "bind")), listener.bind)
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
    check_pair((*path, "cert_file"), listener.cert_file, listener.key_file)
    for server_name, certificate in listener.sni.items():
        check_pair((*path, "sni", server_name, "cert_file"), certificate.cert_file, certificate.key_file)
    for name in ("ca_file", "crl_file"):
        if file := getattr(listener, name):
            check_readable(dotted((*path, name)), file)
    if listener.verify != "none" and not listener.ca_file:
        raise ConfigError(dotted((*path, "ca_file")), f'is missing; verify = "{listener.verify}" needs it')
    if listener.crl_file and listener.verify == "none":
        raise ConfigError(dotted((*path, "crl_file")), 'has no effect while verify is "none"', 'set verify = "required"')
    if listener.user_from_certificate and listener.verify == "none":
        hint = 'set verify = "required"'
        raise ConfigError(dotted((*path, "user_from_certificate")), 'needs client certificates, but verify is "none"', hint)


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
        address = check_address(key, bind)
        for other_key, other in seen:
            if clash(address, other):
                raise ConfigError(key, f"{bind} is taken by {other_key} ({other})")
        seen.append((key, address))


# -- history -----------------------------------------------------------------------------------------------------------


def _check_history(history: HistorySettings) -> None:
    """Checks that do not depend on the syntax of topic filters; the log itself checks the filters."""
    check_size("history.retention_bytes", history.retention_bytes)
    for name, each in history.classes.items():
        key = dotted(("history", "classes", name))
        check_name(key, name)
        check_size(f"{key}.retention_bytes", each.retention_bytes)
        if not each.topics:
            raise ConfigError(f"{key}.topics", "is empty", "list the topic filters of the class, or remove the class")


def _check_history_service(history: HistorySettings, access: AccessSettings) -> list[str]:
    if not history.bind:
        return []
    address = check_address("history.bind", history.bind)
    if history.address:
        check_target("history.address", history.address, "10.0.0.1:8815")
    if bool(history.cert_file) != bool(history.key_file):
        missing = "key_file" if history.cert_file else "cert_file"
        raise ConfigError(f"history.{missing}", "is missing; TLS needs a certificate and its key")
    if history.cert_file:
        check_pair(("history", "cert_file"), history.cert_file, history.key_file)
    if history.ca_file:
        if not history.cert_file:
            raise ConfigError("history.ca_file", "has no effect without TLS", "set history.cert_file and history.key_file")
        check_readable("history.ca_file", history.ca_file)
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


# -- features to come --------------------------------------------------------------------------------------------------


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


def _check_response_topic(prefix: str) -> None:
    if not prefix or any(letter in prefix for letter in "+#\0") or prefix.startswith("$"):
        raise ConfigError("mqtt.response_topic_prefix", f"{prefix!r} is not a valid topic prefix", "no '+', '#' or leading '$'")
