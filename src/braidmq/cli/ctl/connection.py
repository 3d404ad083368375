"""HTTP to a node's control paths, over its Unix socket or over TCP. One request at a time, and no event loop to start."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from braidmq.cli.errors import CommandFailed

SOCKET_NAME: Final = "ctl.sock"
TOKEN_NAME: Final = "ctl.token"  # noqa: S105 - the name of a file
TIMEOUT_S: Final = 30.0
_STREAM_BYTES: Final = 256 * 1024

Answer = TypeVar("Answer")


class NodeConnection:
    """Where a node is, and how to be let in; each call is a connection of its own."""

    def __init__(self, *, socket_path: Path | None = None, url: str = "", token: str = "") -> None:
        self._socket_path = socket_path
        self._url = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, type_: type[Answer], **parameters: object) -> Answer:
        """The answer in its type."""
        return msgspec.json.decode(self.get_raw(path, **parameters), type=type_)

    def get_raw(self, path: str, **parameters: object) -> bytes:
        """The answer as JSON."""
        return self._call("GET", path, parameters)

    def delete(self, path: str, **parameters: object) -> bytes:
        """Remove something; the answer as JSON, often empty."""
        return self._call("DELETE", path, parameters)

    def send(self, method: str, path: str, body: object) -> bytes:
        """POST or PUT a value; the answer as JSON, often empty."""
        return self._call(method, path, {}, msgspec.json.encode(body))

    def stream(self, method: str, path: str, body: object = None, **parameters: object) -> Iterator[bytes]:
        """The lines of a long answer, without their ends; the last one may be cut short. A list is a parameter given again."""
        encoded = None if body is None else msgspec.json.encode(body)
        connection, response = self._open(method, path, parameters, encoded)
        rest = b""
        with connection:
            try:
                while some := response.read1(_STREAM_BYTES):
                    *whole, rest = (rest + some).split(b"\n")
                    yield from whole
            except (OSError, http.client.HTTPException):
                return  # whoever reads it sees that the end is missing
        if rest:
            yield rest

    def lines(self, path: str, **parameters: object) -> Iterator[str]:
        """The lines of an answer that goes on until one of both sides has enough."""
        connection, response = self._open("GET", path, parameters, None)
        with connection:
            while line := response.readline():
                yield line.decode("utf-8", "replace").rstrip("\n")

    def _call(self, method: str, path: str, parameters: dict[str, Any], body: bytes | None = None) -> bytes:
        connection, response = self._open(method, path, parameters, body, TIMEOUT_S)
        with connection:
            return response.read()

    def _open(
        self, method: str, path: str, parameters: dict[str, Any], body: bytes | None, timeout_s: float | None = None
    ) -> tuple[contextlib.closing[http.client.HTTPConnection], http.client.HTTPResponse]:
        given = {name: value for name, value in parameters.items() if value is not None}
        connection = self._connection(timeout_s)
        target = f"{self._url.path.rstrip('/')}/ctl{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")
        try:
            connection.request(method, target, body, {**self._headers, "Content-Type": "application/json"})
            response = connection.getresponse()
        except TimeoutError:
            raise CommandFailed(f"{self._name} did not answer within {TIMEOUT_S:g} s") from None
        except OSError as error:
            connection.close()
            raise self._unreachable(error) from None
        except http.client.HTTPException as error:
            connection.close()
            raise CommandFailed(f"{self._name} does not answer like a node: {error!r}") from None
        closing = contextlib.closing(connection)
        if response.status >= 400:
            with closing:
                raise _refusal(response, self._name)
        return closing, response

    def _connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self._socket_path is not None:
            return _UnixConnection(self._socket_path, timeout_s)
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _unreachable(self, error: OSError) -> CommandFailed:
        match error:
            case FileNotFoundError() | ConnectionRefusedError() if self._socket_path is not None:
                return CommandFailed(
                    f"no node is running with the data directory {self._socket_path.parent} "
                    "(name its directory with --data-dir, or its address with --api)"
                )
            case PermissionError():
                return CommandFailed(f"{self._name} belongs to another user: run this as the user of the node")
            case ConnectionRefusedError():
                return CommandFailed(f"nobody listens at {self._name}")
            case _:
                return CommandFailed(f"{self._name}: {error.strerror or error}")

    @property
    def _name(self) -> str:
        return str(self._socket_path) if self._socket_path is not None else self._url.geturl()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _refusal(response: http.client.HTTPResponse, name: str) -> CommandFailed:
    try:
        sentence = msgspec.json.decode(response.read(), type=dict[str, str])["message"]
    except (msgspec.DecodeError, KeyError):
        sentence = f"{name} answered {response.status} {response.reason}"
    if response.status == 404 and "/ctl" in sentence:
        sentence = f"{name} has no control paths: they are there on a loopback address only"
    return CommandFailed(sentence)
