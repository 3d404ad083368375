"""The control client alone, against a server that answers as told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from braidmq.base.errors import Unavailable, UsageError
from braidmq.control.client import ControlClient
from braidmq.control.history import ShardPatterns

Serve = Callable[[int, bytes], str]


class Asked(msgspec.Struct):
    """The requests that a server received."""

    paths: list[str] = []
    tokens: list[str | None] = []
    bodies: list[bytes] = []


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def serve(asked: Asked) -> Iterator[Serve]:
    """Starts a server that gives every request the same answer; the result is its URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.paths.append(self.path)
                asked.tokens.append(self.headers["Authorization"])
                asked.bodies.append(self.rfile.read(int(self.headers["Content-Length"] or 0)))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_an_answer_comes_in_its_type(serve: Serve, asked: Asked) -> None:
    node = ControlClient(url=serve(200, b'[{"shard": 2, "patterns": ["a/+"], "later": 1}]'), token="secret")

    answer = node.get("/history/patterns", list[ShardPatterns], limit=3, cursor=None)

    assert answer == [ShardPatterns(shard=2, patterns=["a/+"])]
    assert asked.paths == ["/ctl/history/patterns?limit=3"]
    assert asked.tokens == ["Bearer secret"]


def test_a_body_is_sent_as_json(serve: Serve, asked: Asked) -> None:
    node = ControlClient(url=serve(200, b"{}"))

    node.send("POST", "/history/relearn", {"patterns": ["a/+"]})

    assert asked.bodies == [b'{"patterns":["a/+"]}']
    assert asked.tokens == [None]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, b'{"message": "no such key"}', "no such key"),
        (502, b"<html>", "{url} answered 502 Bad Gateway"),
        (404, b'{"message": "there is no /ctl/status"}', "{url} has no control paths; they exist on loopback addresses only"),
    ],
)
def test_a_rejection_is_an_error_with_the_message_of_the_node(serve: Serve, status: int, body: bytes, words: str) -> None:
    url = serve(status, body)

    with pytest.raises(UsageError) as caught:
        ControlClient(url=url).get_raw("/status")

    assert caught.value.detail == words.format(url=url)


def test_a_node_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no node is running with the data directory"):
        ControlClient(socket_path=tmp_path / "ctl.sock").get_raw("/status")


@pytest.mark.parametrize(
    ("says", "words"),
    [(b"", "did not answer within 0.05 s"), (b"SSH-2.0-OpenSSH_9.2\r\n", "sent an answer that is not from a node")],
)
def test_a_server_that_is_not_a_node_is_unavailable(says: bytes, words: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        node = ControlClient(url=f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.05 if not says else 10)
        peers: list[socket.socket] = []

        def answer() -> None:
            peers.append(server.accept()[0])
            peers[0].sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unavailable, match=words):
            node.get_raw("/status")
        thread.join()
        peers[0].close()
