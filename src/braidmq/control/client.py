"""HTTP to a node's control paths, over its Unix socket or over TCP. One request at a time, without an event loop.

Every call raises Unavailable if no node answers, and UsageError with the node's message if it rejects the request.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from braidmq.base.errors import Unavailable, UsageError

TIMEOUT_S: Final = 30.0
_STREAM_BYTES: Final = 256 * 1024

Answer = TypeVar("Answer")


class ControlClient:
    """Controls one node; each call opens a connection of its own.

    The node is found by its Unix socket or by `http://HOST:PORT`, which requires a token. Streams have no time limit.
    """

    def __init__(self, *, socket_path: Path | None = None, url: str = "", token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        self._socket_path = socket_path
        self._url = urlsplit(url)
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._timeout_s = timeout_s

    def get(self, path: str, type_: type[Answer], **parameters: object) -> Answer:
        """The response, decoded to this type."""
        return msgspec.json.decode(self.get_raw(path, **parameters), type=type_)

    def get_raw(self, path: str, **parameters: object) -> bytes:
        """The response as JSON."""
        return self._call("GET", path, parameters)

    def delete(self, path: str, **parameters: object) -> bytes:
        """Send DELETE; returns the response as JSON, often empty."""
        return self._call("DELETE", path, parameters)

    def send(self, method: str, path: str, body: object) -> bytes:
        """POST or PUT a value; returns the response as JSON, often empty."""
        return self._call(method, path, {}, msgspec.json.encode(body))

    def stream(self, method: str, path: str, body: object = None, **parameters: object) -> Iterator[bytes]:
        """The lines of a streaming response, without line ends; the last one may be truncated. A list repeats its parameter."""
        encoded = None if body is None else msgspec.json.encode(body)
        connection, response = self._open(method, path, parameters, encoded)
        rest = b""
        with connection:
            try:
                while some := response.read1(_STREAM_BYTES):
                    *whole, rest = (rest + some).split(b"\n")
                    yield from whole
            except (OSError, http.client.HTTPException):
                return  # the caller sees that the end is missing
        if rest:
            yield rest

    def lines(self, path: str, **parameters: object) -> Iterator[str]:
        """The lines of a response that continues until either side ends it."""
        connection, response = self._open("GET", path, parameters, None)
        with connection:
            while line := response.readline():
                yield line.decode("utf-8", "replace").rstrip("\n")

    def _call(self, method: str, path: str, parameters: dict[str, Any], body: bytes | None = None) -> bytes:
        connection, response = self._open(method, path, parameters, body, self._timeout_s)
        with connection:
            return self._read(response)

    def _open(
        self, method: str, path: str, parameters: dict[str, Any], body: bytes | None, timeout_s: float | None = None
    ) -> tuple[contextlib.closing[http.client.HTTPConnection], http.client.HTTPResponse]:
        given = {name: value for name, value in parameters.items() if value is not None}
        connection = self._connection(timeout_s)
        target = f"{self._url.path.rstrip('/')}/ctl{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(connection.close)
            try:
                connection.request(method, target, body, self._headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from None
            if response.status >= 400:
                raise self._refusal(response)
            on_failure.pop_all()
        return contextlib.closing(connection), response

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None

    def _connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self._socket_path is not None:
            return _UnixConnection(self._socket_path, timeout_s)
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _unreachable(self, error: Exception) -> Unavailable:
        match error:
            case TimeoutError():
                return Unavailable(f"{self._name} did not answer within {self._timeout_s:g} s")
            case FileNotFoundError() | ConnectionRefusedError() if self._socket_path is not None:
                return Unavailable(
                    f"no node is running with the data directory {self._socket_path.parent} "
                    "(use --data-dir or --api to select the node)"
                )
            case PermissionError():
                return Unavailable(f"{self._name} belongs to another user; run this command as the user of the node")
            case ConnectionRefusedError():
                return Unavailable(f"no process listens at {self._name}")
            case OSError():
                return Unavailable(f"{self._name}: {error.strerror or error}")
            case _:
                return Unavailable(f"{self._name} sent an answer that is not from a node: {error!r}")

    def _refusal(self, response: http.client.HTTPResponse) -> UsageError:
        try:
            sentence = msgspec.json.decode(self._read(response), type=dict[str, str])["message"]
        except (msgspec.DecodeError, KeyError):
            sentence = f"{self._name} answered {response.status} {response.reason}"
        if response.status == 404 and "/ctl" in sentence:
            sentence = f"{self._name} has no control paths; they exist on loopback addresses only"
        return UsageError(sentence)

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
