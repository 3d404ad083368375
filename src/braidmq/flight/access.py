"""How a client reaches history services: addresses, credentials, TLS. No error or repr contains a secret."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from pyarrow import flight

from braidmq.base.errors import UsageError

PORT: Final = 8815
_PLAIN, _TLS = "grpc://", "grpc+tls://"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials and TLS settings. Files are PEM and are read when a connection is made."""

    user: str = ""
    password: str = ""
    token: str = ""
    reader: str = ""  # the reader's name: its client id in access rules and limits
    tls: bool = False  # for addresses without a scheme; each of the next four options implies it
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""  # the name in the server's certificate, if it differs from the address

    def check(self) -> None:
        """Raise UsageError for contradictory options."""
        if self.token and (self.user or self.password):
            raise UsageError("both a token and a user are given", "give user and password, or a token")
        if self.password and not self.user:
            raise UsageError("a password needs a user", "give both")
        if bool(self.cert_file) != bool(self.key_file):
            raise UsageError("a client certificate needs its key, and a key its certificate", "give both files")

    @property
    def wants_tls(self) -> bool:
        """Whether an address without a scheme uses TLS."""
        return self.tls or bool(self.ca_file or self.cert_file or self.server_name)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of every call."""
        found = []
        if self.user:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode())
            found.append((b"authorization", b"Basic " + pair))
        elif self.token:
            found.append((b"authorization", b"Bearer " + self.token.encode()))
        if self.reader:
            # gRPC carries ASCII only.
            found.append((b"x-braidmq-reader", quote(self.reader, safe="").encode()))
        return found

    def dial(self, location: str) -> flight.FlightClient:
        """A client of one server. It connects on first use, and shares no connection with other clients."""
        # A shared connection would also share gRPC's backoff, which grows to minutes.
        options: dict[str, Any] = {"generic_options": [("grpc.use_local_subchannel_pool", 1)]}
        if location.startswith(_TLS):
            options["tls_root_certs"] = _read(self.ca_file) if self.ca_file else _system_authorities()
            if self.cert_file:
                options["cert_chain"], options["private_key"] = _read(self.cert_file), _read(self.key_file)
            if self.server_name:
                options["override_hostname"] = self.server_name
        return flight.FlightClient(location, **options)

    def __repr__(self) -> str:
        return f"Access({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        given = [(name, value) for name, value in msgspec.structs.asdict(self).items() if value]
        return [(name, "***" if name in ("password", "token") else value) for name, value in given]


def parse_servers(servers: str | Sequence[str], *, tls: bool = False) -> list[str]:
    """Parse locations: `host:port`, `grpc://host:port` or `grpc+tls://host:port`, as a list or separated by commas.

    The default port is 8815; `tls` applies to locations without a scheme. Raises UsageError for an invalid one.
    """
    listed = servers.split(",") if isinstance(servers, str) else servers
    found = [_parse_server(each.strip(), tls) for each in listed if each.strip()]
    if not found:
        raise UsageError("no server is given", "write host:port, or several separated by commas")
    return list(dict.fromkeys(found))


def is_plain(location: str) -> bool:
    """Whether calls to this location travel without TLS."""
    return not location.startswith(_TLS)


def _parse_server(text: str, tls: bool) -> str:
    scheme, rest = _TLS if tls else _PLAIN, text
    if "://" in text:
        name, _, rest = text.partition("://")
        known = {"grpc": _PLAIN, "grpc+tcp": _PLAIN, "grpc+tls": _TLS}
        if name not in known:
            raise UsageError(f"{name}:// is not a scheme of the history service", "write grpc:// or grpc+tls://")
        scheme = known[name]
    if "@" in rest:
        # Not quoted: the part before the @ may contain a password.
        raise UsageError("an address must not contain credentials", "use the options for user and password")
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]"):
        host, port = rest, str(PORT)
    is_whole = bool(host) and "/" not in host and (":" not in host or (host[0] == "[" and host[-1] == "]"))
    if not is_whole or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"{text!r} is not the address of a server", "write host:port, or [address]:port for IPv6")
    return f"{scheme}{host}:{port}"


def _read(file_name: str) -> bytes:
    try:
        return Path(file_name).read_bytes()
    except OSError as problem:
        raise UsageError(
            f"{file_name} cannot be read: {problem.strerror}", "the file must exist on every machine that reads"
        ) from None


def _system_authorities() -> bytes:
    # gRPC has its own authorities or none, depending on the build; users expect those of the system.
    file_name = ssl.get_default_verify_paths().cafile
    if not file_name:
        raise UsageError("this system has no default file of certificate authorities", "set the option for the CA file")
    return _read(file_name)
