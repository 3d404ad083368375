"""The options that ``pub``, ``sub`` and ``bench`` share with the Mosquitto clients, and the connection they describe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import click
import msgspec

from braidmq.cli.errors import CommandFailed
from braidmq.cli.messages.property_option import parse_properties
from braidmq.client.transport import Endpoint, client_context
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, Connect, Will
from braidmq.mqtt.properties import NO_PROPERTIES, Properties

VERSIONS: Final = {
    **dict.fromkeys(("mqttv31", "31", "3.1", "3"), MQTT31),
    **dict.fromkeys(("mqttv311", "311", "3.1.1", "4"), MQTT311),
    **dict.fromkeys(("mqttv5", "5", "5.0"), MQTT5),
}
_SCHEMES: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 8083, "wss": 8084}
_FOREVER: Final = 0xFFFFFFFF
WEBSOCKET_PATH: Final = "/mqtt"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class ConnectionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed options: endpoint, login and properties."""

    endpoint: Endpoint
    login: Connect
    url_topic: str = ""
    properties: dict[str, Properties] = {}
    inflight_max: int = 20
    debug: bool = False
    quiet: bool = False

    def properties_of(self, command: str) -> Properties:
        """The properties given with ``-D`` for one command."""
        return self.properties.get(command, NO_PROPERTIES)


def parse_version(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """The protocol version that ``-V`` names."""
    if text is None:
        return None
    if text not in VERSIONS:
        raise click.BadParameter(f"{text!r} is not one of mqttv31, mqttv311, mqttv5")
    return VERSIONS[text]


def parse_expiry(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """A session expiry in seconds; -1 and ∞ mean that it never expires."""
    if text is None:
        return None
    if text in ("-1", "∞"):
        return _FOREVER
    if not (text.isascii() and text.isdecimal() and int(text) <= _FOREVER):
        raise click.BadParameter(f"{text!r} is not a number of seconds")
    return int(text)


_TLS_OPTIONS: Final = (
    click.option("--tls", "tls_wanted", is_flag=True, help="Use TLS and trust the authorities of the system."),
    click.option("--cafile", default="", help="File of trusted certificate authorities; enables TLS."),
    click.option("--capath", default="", help="Directory of trusted certificate authorities; enables TLS."),
    click.option("--cert", default="", help="Client certificate (PEM)."),
    click.option("--key", default="", help="Key of the client certificate (PEM)."),
    click.option("--insecure", is_flag=True, help="Do not check that the certificate is for this host."),
    click.option("--tls-use-os-certs", is_flag=True, help="The same as --tls."),
    click.option("--tls-version", type=click.Choice(["tlsv1.2", "tlsv1.3"]), help="Use only this TLS version."),
    click.option("--ciphers", default="", help="TLS 1.2 ciphers in the notation of OpenSSL."),
    click.option("--tls-alpn", default="", help="ALPN protocol to request."),
)
_PASSWORD_OPTIONS: Final = (
    click.option("-u", "--username", envvar="BRAIDMQ_USER", help="User name; also from BRAIDMQ_USER."),
    click.option("-P", "--pw", help="Password. Visible in the process list: prefer one of the following options."),
    click.option("--password-file", type=click.Path(dir_okay=False), help="Read the password from the first line of a file."),
    click.option("--ask-password", is_flag=True, help="Prompt for the password. BRAIDMQ_PASSWORD is read too."),
)
_WEBSOCKET_OPTIONS: Final = (
    click.option("--ws", is_flag=True, help="Speak MQTT over WebSocket."),
    click.option("--ws-path", default=WEBSOCKET_PATH, show_default=True, help="Path of the WebSocket."),
)
_MOSQUITTO_OPTIONS: Final = (
    click.option("-h", "--host", help="Host of the server.  [default: localhost]"),
    click.option("-p", "--port", type=click.IntRange(1, 65535), help="Port.  [default: 1883, 8883 with TLS, 8083 with --ws]"),
    click.option("-L", "--url", help="mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC, or ws[s]://HOST[:PORT]/PATH."),
    click.option("--unix", "unix_path", default="", help="Connect through a Unix socket."),
    click.option("-A", "bind_address", default="", help="Local address to connect from."),
    click.option("-i", "--id", "client_id", help="Client id."),
    click.option("-I", "--id-prefix", help="Prefix of the client id; the process id follows."),
    click.option("-V", "--protocol-version", "version", callback=parse_version, help="mqttv31, mqttv311 (default) or mqttv5."),
    click.option("-k", "--keepalive", type=click.IntRange(0, 65535), default=60, show_default=True, help="Keep alive, seconds."),
    click.option("-c", "--disable-clean-session", "keep_session", is_flag=True, help="Keep the session after disconnecting."),
    click.option("-x", "--session-expiry-interval", "expiry", callback=parse_expiry, help="Session expiry, seconds (MQTT 5)."),
    click.option(
        "-M",
        "--max-inflight",
        type=click.IntRange(1, 65535),
        default=20,
        show_default=True,
        help="Unacknowledged messages.",
    ),
    click.option("-D", "--property", "property_options", multiple=True, metavar="COMMAND NAME VALUE", help="MQTT 5 property."),
    click.option("--will-topic", default="", help="Topic of the will."),
    click.option("--will-payload", default="", help="Payload of the will."),
    click.option("--will-qos", type=click.IntRange(0, 2), default=0, help="QoS of the will."),
    click.option("--will-retain", is_flag=True, help="Make the will retained."),
    click.option("-d", "--debug", is_flag=True, help="Print every packet."),
    click.option("--quiet", is_flag=True, help="Print no error messages."),
    click.option("--nodelay", is_flag=True, help="Accepted for compatibility with Mosquitto; always on."),
)


def connection_options(command: Decorated) -> Decorated:
    """Add the connection options of the Mosquitto clients to a command."""
    return _with(command, (*_MOSQUITTO_OPTIONS, *_PASSWORD_OPTIONS, *_WEBSOCKET_OPTIONS, *_TLS_OPTIONS))


def bench_connection_options(command: Decorated) -> Decorated:
    """Add the shared options of ``bench`` to a command: login, WebSocket and TLS."""
    return _with(command, (*_PASSWORD_OPTIONS, *_WEBSOCKET_OPTIONS, *_TLS_OPTIONS))


def _with(command: Decorated, options: tuple[Any, ...]) -> Decorated:
    for option in reversed(options):
        command = option(command)
    return command


def read_connection(given: dict[str, Any], default_id_prefix: str) -> ConnectionOptions:
    """The connection that the options describe; raises CommandFailed."""
    url_topic = ""
    if given["url"]:
        given = {**given, **(from_url := _read_url(given["url"]))}
        url_topic = from_url["topic"]
    version = given["version"] or (MQTT5 if given["property_options"] or given["expiry"] is not None else MQTT311)
    if version != MQTT5 and (given["property_options"] or given["expiry"] is not None):
        raise CommandFailed("-D and -x need MQTT 5: add -V mqttv5")
    properties = parse_properties(given["property_options"])
    user_name, password = read_login(given)
    if password is not None and user_name is None and version != MQTT5:
        raise CommandFailed("a password needs a user name (-u) before MQTT 5")
    client_id = given["client_id"]
    if client_id is None:
        client_id = f"{given['id_prefix'] or default_id_prefix}{os.getpid()}"
    login = Connect(
        client_id=client_id,
        version=version,
        clean_start=not given["keep_session"],
        keep_alive=given["keepalive"],
        user_name=user_name,
        password=password,
        will=_read_will(given, properties.get("will", NO_PROPERTIES)),
        properties=_connect_properties(given, properties.get("connect", NO_PROPERTIES), version),
    )
    return ConnectionOptions(
        endpoint=read_endpoint(given),
        login=login,
        url_topic=url_topic,
        properties=properties,
        inflight_max=given["max_inflight"],
        debug=given["debug"],
        quiet=given["quiet"],
    )


def read_endpoint(given: dict[str, Any]) -> Endpoint:
    """The endpoint that the options describe, with its TLS context."""
    port, websocket = given["port"], given["ws"]
    asks_for_tls = any(given[name] for name in ("tls_wanted", "cafile", "capath", "cert", "tls_use_os_certs", "insecure"))
    tls = asks_for_tls or port in (8883, 8084)
    if given["key"] and not given["cert"]:
        raise CommandFailed("--key needs --cert")
    if port is None:
        port = {(False, False): 1883, (False, True): 8883, (True, False): 8083, (True, True): 8084}[bool(websocket), tls]
    context = None
    if tls:
        context = client_context(
            ca_file=given["cafile"],
            ca_path=given["capath"],
            cert_file=given["cert"],
            key_file=given["key"],
            check_host_name=not given["insecure"],
            versions=given["tls_version"] or "",
            ciphers=given["ciphers"],
            alpn=given["tls_alpn"],
        )
    return Endpoint(
        host=given["host"] or "localhost",
        port=port,
        unix_path=given["unix_path"],
        websocket_path=given["ws_path"] if websocket else "",
        tls=context,
        bind_address=given["bind_address"],
    )


def read_login(given: dict[str, Any]) -> tuple[str | None, bytes | None]:
    """User name and password; the password comes from the option, file, prompt or environment, in this order."""
    password: str | None = given["pw"]
    if password is None and given["password_file"]:
        try:
            lines = Path(given["password_file"]).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
            raise CommandFailed(f"{given['password_file']}: {why}") from None
        if not lines:
            raise CommandFailed(f"{given['password_file']}: the file contains no password")
        password = lines[0]
    if password is None and given["ask_password"]:
        if not sys.stdin.isatty():
            raise CommandFailed("--ask-password needs a terminal; use --password-file or BRAIDMQ_PASSWORD")
        password = click.prompt("Password", hide_input=True, err=True, default="", show_default=False)
    if password is None:
        password = os.environ.get("BRAIDMQ_PASSWORD")
    return given["username"], None if password is None else password.encode("utf-8", "surrogateescape")


def _read_will(given: dict[str, Any], properties: Properties) -> Will | None:
    if not given["will_topic"]:
        if given["will_payload"] or given["will_retain"] or properties is not NO_PROPERTIES:
            raise CommandFailed("a will needs --will-topic")
        return None
    payload = given["will_payload"].encode("utf-8", "surrogateescape")
    return Will(given["will_topic"], payload, given["will_qos"], given["will_retain"], properties)


def _connect_properties(given: dict[str, Any], properties: Properties, version: int) -> Properties:
    expiry = given["expiry"]
    if expiry is None and given["keep_session"] and version == MQTT5 and properties.session_expiry_interval is None:
        expiry = _FOREVER  # -c alone keeps the session, as in MQTT 3
    return properties if expiry is None else msgspec.structs.replace(properties, session_expiry_interval=expiry)


def _read_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise CommandFailed(f"-L: {error}") from None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise CommandFailed("-L: write a URL such as mqtt://host:1883/topic; mqtts, ws and wss are accepted too")
    found: dict[str, Any] = {"host": parts.hostname, "port": port or _SCHEMES[parts.scheme], "topic": ""}
    if parts.scheme in ("mqtts", "wss"):
        found["tls_wanted"] = True
    if parts.scheme in ("ws", "wss"):
        found.update(ws=True, ws_path=parts.path or WEBSOCKET_PATH)
    else:
        found["topic"] = unquote(parts.path.removeprefix("/"))
    if parts.username is not None:
        found["username"] = unquote(parts.username)
    if parts.password is not None:
        found["pw"] = unquote(parts.password)
    return found
