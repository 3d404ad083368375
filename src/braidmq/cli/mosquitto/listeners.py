"""Converts a Mosquitto listener: address, TLS, limits, and anonymous access."""

from __future__ import annotations

from typing import Any

from braidmq.base.config.addresses import Address
from braidmq.base.config.keys import format_value
from braidmq.cli.mosquitto import options
from braidmq.cli.mosquitto.conf import ConfLine, resolve
from braidmq.cli.mosquitto.report import Outcome, Report, bad_value, is_true, number

_KINDS = {(False, False): "tcp", (True, False): "tls", (False, True): "ws", (True, True): "wss"}

# Restrictions without a counterpart: a listener without them would admit more clients than before.
_FENCES = {
    "mount_point": "mount points are not supported",
    "bind_interface": "bind takes an address, not an interface",
    "psk_hint": "pre-shared keys are not supported",
}


class MosquittoListener:
    """The lines of one listener; ``line`` is None for Mosquitto's default listener."""

    def __init__(self, line: ConfLine | None) -> None:
        self.line = line
        self.options: dict[str, ConfLine] = {}
        self.held: list[str] = []  # reasons why it must not be enabled


def take_listener(
    listener: MosquittoListener, report: Report, *, anonymous: ConfLine | None, has_passwords: bool, is_only: bool
) -> None:
    """Write the listener's table. ``anonymous`` is the line that applies to all listeners; ``is_only``: there is no other."""
    address = _address(listener, report, is_only=is_only)
    if address is None:
        return
    kind = _kind(listener, report)
    table: dict[str, Any] = {"bind": str(address)}
    if kind in ("tls", "wss"):
        _take_tls(listener, report, table)
    _take_limits(listener, report, table)
    _take_anonymous(listener, report, table, anonymous, has_passwords)
    key = _place(report, kind, address.port, table)
    for line in (listener.line, listener.options.get("port"), listener.options.get("bind_address")):
        if line is not None:
            report.tell("taken", line, f"{key} bind = {format_value(table['bind'])}")
    if listener.held:
        table["enabled"] = False
        report.held[key] = "; ".join(listener.held)
        report.tell("changed", listener.line, f"{key} enabled = false: {report.held[key]}")


def _address(listener: MosquittoListener, report: Report, *, is_only: bool) -> Address | None:
    given = listener.options
    if listener.line is None:
        port = number(given["port"]) if "port" in given else 1883
        host = given["bind_address"].value if "bind_address" in given else ""
        if is_only and not given.keys() & {"port", "bind_address"}:
            host = "127.0.0.1"  # without a listener line, Mosquitto binds to localhost only
    else:
        port_text, _, host = listener.line.value.partition(" ")
        host = host.strip()
        if host.startswith("/"):
            for line in (listener.line, *given.values()):
                report.tell("none", line, "Unix sockets are not supported")
            return None
        if not port_text.isdecimal():
            raise bad_value(listener.line, "is not a port")
        port = int(port_text)
    if not 0 < port <= 65535:
        raise bad_value(given.get("port") or listener.line or next(iter(given.values())), "is not a port")
    if "socket_domain" in given:
        host = host or {"ipv4": "0.0.0.0", "ipv6": "::"}.get(given["socket_domain"].value, "")
        report.tell("taken", given["socket_domain"], f"bind = {format_value(str(Address(host, port)))}")
    return Address(host, port)


def _kind(listener: MosquittoListener, report: Report) -> str:
    given = listener.options
    is_tls = "certfile" in given or "keyfile" in given
    is_websocket = "protocol" in given and given["protocol"].value == "websockets"
    kind = _KINDS[is_tls, is_websocket]
    if "protocol" in given:
        protocol = given["protocol"]
        if protocol.value not in ("mqtt", "websockets"):
            listener.held.append(f"unknown protocol {protocol.value!r}")
        if is_websocket:
            report.tell("changed", protocol, f"a listener of kind {kind}, at the path /mqtt; Mosquitto accepts any path")
        else:
            report.tell("taken", protocol, f"a listener of kind {kind}")
    if not is_tls:
        for name, line in given.items():
            if name in options.TLS_OPTIONS:
                report.tell("none", line, "has no effect without certfile and keyfile")
    return kind


def _take_tls(listener: MosquittoListener, report: Report, table: dict[str, Any]) -> None:
    given = listener.options
    requires = "require_certificate" in given and is_true(given["require_certificate"])
    for name, key in (("certfile", "cert_file"), ("keyfile", "key_file"), ("cafile", "ca_file")):
        if name in given:
            _set(report, table, given[name], key, str(resolve(given[name], given[name].value)))
        elif name != "cafile":
            listener.held.append(f"{name} is missing")
    if "require_certificate" in given:
        _set(report, table, given["require_certificate"], "verify", "required" if requires else "none")
    if "capath" in given:
        report.tell("none", given["capath"], "put the certificates of this directory into one file and set ca_file to it")
    if requires and "ca_file" not in table:
        listener.held.append("client certificates are required, but there is no cafile")
    if "tls_version" in given:
        version = given["tls_version"]
        outcome: Outcome = "taken" if version.value in ("tlsv1.2", "tlsv1.3") else "changed"
        _set(report, table, version, "tls_min", "1.3" if version.value == "tlsv1.3" else "1.2", outcome)
    _take_client_certificates(listener, report, table, requires)


def _take_client_certificates(listener: MosquittoListener, report: Report, table: dict[str, Any], requires: bool) -> None:
    given = listener.options
    if "crlfile" in given:
        if requires:
            _set(report, table, given["crlfile"], "crl_file", str(resolve(given["crlfile"], given["crlfile"].value)))
        else:
            report.tell("none", given["crlfile"], "client certificates are not required")
    # The first of the two takes precedence, as in Mosquitto.
    for name, form in (("use_identity_as_username", "cn"), ("use_subject_as_username", "dn")):
        if name not in given:
            continue
        if not is_true(given[name]):
            report.tell("taken", given[name], "certificate names are not used as user names")
        elif not requires:
            report.tell("none", given[name], "client certificates are not required")
        elif "user_from_certificate" in table:
            report.tell("none", given[name], "use_identity_as_username takes precedence")
        else:
            _set(report, table, given[name], "user_from_certificate", form)


def _take_limits(listener: MosquittoListener, report: Report, table: dict[str, Any]) -> None:
    given = listener.options
    if "max_connections" in given:
        limit = number(given["max_connections"], least=-1)
        if limit > 0:
            _set(report, table, given["max_connections"], "connections_max", limit)
        else:
            report.tell("taken", given["max_connections"], "connections_max keeps its default of 1000000")
    if "enable_proxy_protocol" in given:
        _set(report, table, given["enable_proxy_protocol"], "proxy_protocol", True, "changed")
        listener.held.append("proxy_peers must list the proxies")
    for name, why in _FENCES.items():
        if name in given:
            listener.held.append(why)
            report.tell("none", given[name], why)


def _take_anonymous(
    listener: MosquittoListener, report: Report, table: dict[str, Any], anonymous: ConfLine | None, has_passwords: bool
) -> None:
    given = listener.options
    own = given.get("listener_allow_anonymous") or given.get("allow_anonymous") or anonymous
    if "listener_allow_anonymous" in given:
        report.tell("taken", given["listener_allow_anonymous"], "allow_anonymous of this listener")
    if own is not None:
        table["allow_anonymous"] = is_true(own)
    elif listener.line is not None or given.keys() & {"port", "bind_address"}:
        table["allow_anonymous"] = False  # since Mosquitto 2
    if not (table.get("allow_anonymous", True) or has_passwords or "user_from_certificate" in table):
        listener.held.append("there is no password file and anonymous clients are not allowed: no client could log in")


def _place(report: Report, kind: str, port: int, table: dict[str, Any]) -> str:
    named = report.tables.setdefault("listeners", {}).setdefault(kind, {})
    name = "default" if not named else f"port-{port}"
    while name in named:
        name += "-more"
    named[name] = table
    return f"listeners.{kind}.{name}"


def _set(report: Report, table: dict[str, Any], line: ConfLine, key: str, value: Any, outcome: Outcome = "taken") -> None:
    table[key] = value
    report.tell(outcome, line, f"{key} = {format_value(value)}")
