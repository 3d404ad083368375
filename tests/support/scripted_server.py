"""A server that follows a script, for what no real server can be made to do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable


class ScriptedServer:
    """Does what a function says with each of its connections; ``with ScriptedServer(script) as port``."""

    def __init__(self, script: Callable[[socket.socket], object], connections: int = 1) -> None:
        self._script = script
        self._connections = connections
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listening.getsockname()[1]
        return port

    def _run(self) -> None:
        for _ in range(self._connections):
            connection, _ = self._listening.accept()
            with connection:
                connection.settimeout(20)
                self._script(connection)

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the script did not come to its end"
