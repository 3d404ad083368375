"""The control paths of a node, for what is not history: the patterns that it has, and new ones."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from braidmq.base.errors import Unavailable, UsageError

_TIMEOUT_S: Final = 60.0


class Control:
    """A node, at its Unix socket in a data directory or at `http://HOST:PORT` with a token."""

    def __init__(self, *, data_dir: Path | None = None, url: str = "", token: str = "") -> None:
        self._socket_path = None if data_dir is None else data_dir / "ctl.sock"
        self._url = urlsplit(url)
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}

    def get(self, path: str) -> Any:
        """The document at a path below `/ctl`; raises Unavailable, or UsageError if the node refuses."""
        return self._call("GET", path, None)

    def post(self, path: str, body: object) -> Any:
        """What a node answers; raises as `get` does."""
        return self._call("POST", path, msgspec.json.encode(body))

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        connection = self._connection()
        try:
            connection.request(method, f"/ctl{path}", body, self._headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as problem:
            where = self._socket_path or self._url.geturl()
            raise Unavailable(f"no node answers at {where}: {problem}") from None
        finally:
            connection.close()
        if answer.status >= 400:
            raise UsageError(f"the node refuses: {_message(data) or answer.reason}")
        return msgspec.json.decode(data)

    def _connection(self) -> http.client.HTTPConnection:
        if self._socket_path is not None:
            return _UnixConnection(self._socket_path)
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.hostname or "", self._url.port, timeout=_TIMEOUT_S)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _message(data: bytes) -> str:
    try:
        return str(msgspec.json.decode(data)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
