"""Strangers and nodes that do not belong to a cluster, as processes and over sockets: refused before anything is allocated.

Each of them costs one line in the log of either side, and is counted. They all meet the same core, which serves a replicant.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from braidmq.base.config.addresses import Address, parse_address
from braidmq.net.frames import FRAME_BYTES_MAX, Frame, FrameBuffer, FrameKind
from braidmq.net.handshake import Handshake, NotAccepted, Side, hello, refusal
from braidmq.net.proto_v1 import Hello
from tests.net.frames_in import feed
from tests.net.nodes import welcome
from tests.scenarios.cluster.cluster import SECRET, ClusterOfProcesses, NodeProcess
from tests.support.ports import free_port

SHARDS = 4
CORE = hello("braid", "core9", "core", 9, "", SHARDS)
REPLICANT = hello("braid", "r9", "replicant", 9, "calls", SHARDS)
GIBIBYTE = struct.pack(">I", 1 << 30)
RESIDENT_BYTES_MAX = 16 << 20
PATIENCE_S = 20.0
Strange = Callable[[socket.socket], None]


class Stage:
    """A core with a replicant, and what the core counts."""

    def __init__(self, cluster: ClusterOfProcesses, api_port: int) -> None:
        self.cluster = cluster
        self.core = cluster.core.process
        self._api_port = api_port

    def connect(self) -> socket.socket:
        host, port = parse_address(self.cluster.rpc)
        return socket.create_connection((host, port), PATIENCE_S)

    def counted(self) -> dict[str, float]:
        """Refused connections by reason; the sum is under the empty one."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._api_port}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        found = re.findall(r"^braidmq_cluster_connections_refused_?(\w*) (\S+)$", text, re.MULTILINE)
        return {reason: float(value) for reason, value in found}

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.core.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    @contextmanager
    def refusing(self, reason: str, said: str) -> Iterator[None]:
        """What happens in the block is refused for this reason, with one line for each attempt; it ends with the block."""
        self.core.arrived()
        before = self.counted()
        yield
        self.core.await_line(said)
        after = self.counted()
        count = int(after[reason] - before[reason])
        assert 1 <= count <= after[""] - before[""]
        for _ in range(count - 1):
            self.core.await_line(said)
        assert [line for line in self.core.arrived() if re.search(said, line)] == []


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    api_port = free_port()
    with ClusterOfProcesses(
        tmp_path_factory.mktemp("cluster"), 1, api={"bind": f"127.0.0.1:{api_port}"}, history={"shards": SHARDS}
    ) as cluster:
        yield Stage(cluster, api_port)


# -- strangers at a core -----------------------------------------------------------------------------------------------


def shake_hands(connected: socket.socket, mine: Hello, secret: str = SECRET) -> None:
    """As a node does. Raises NotAccepted."""
    handshake, buffer = Handshake(Side.CONNECT, mine, secret.encode(), welcome), FrameBuffer()
    connected.sendall(handshake.begin())
    while handshake.peer is None:
        data = connected.recv(65536)
        assert data, "the core has said nothing"
        for frame in feed(buffer, data):
            connected.sendall(handshake.receive(frame))


def nothing_but(data: bytes) -> Strange:
    return lambda connected: connected.sendall(data)


def refused_hello(mine: Hello, secret: str = SECRET) -> Strange:
    def shake(connected: socket.socket) -> None:
        with pytest.raises(NotAccepted) as refused:
            shake_hands(connected, mine, secret)
        if refused.value.is_ours:  # it found the reason itself, and says so
            connected.sendall(refusal(refused.value.reason))

    return shake


def oversize_frame(connected: socket.socket) -> None:
    """From a node that is accepted."""
    shake_hands(connected, REPLICANT)
    connected.sendall(struct.pack(">IBBQ", FRAME_BYTES_MAX + 1, FrameKind.CALL, 0, 1))


@pytest.mark.row("44")
@pytest.mark.parametrize(
    ("strange", "reason", "said"),
    [
        (nothing_but(b"GET / HTTP/1.1\r\nHost: core\r\n\r\n"), "protocol", r"refused \(protocol\)"),
        (nothing_but(GIBIBYTE + b"\1\0" + bytes(64)), "protocol", r"refused \(protocol\)"),
        (oversize_frame, "protocol", "invalid frame"),
        (refused_hello(REPLICANT, "another-secret"), "by_node", r"refused \(refused\): the secrets differ"),
        (refused_hello(replace(REPLICANT, version_min=0, version_max=0)), "version", "it speaks versions 0 to 0"),
        (refused_hello(replace(REPLICANT, cluster="other")), "cluster", "it belongs to cluster 'other', not 'braid'"),
        (refused_hello(replace(REPLICANT, shards=SHARDS + 1)), "unwelcome", "it counts 5 shards, this cluster has 4"),
    ],
    ids=["garbage", "a frame of 1 GiB", "an oversize frame later", "secret", "old version", "cluster", "shards"],
)
def test_a_stranger_is_refused_with_one_line_and_counted(stage: Stage, strange: Strange, reason: str, said: str) -> None:
    before = stage.resident_bytes()

    with stage.refusing(reason, said), stage.connect() as connected:
        strange(connected)
        while connected.recv(65536):
            continue

    assert stage.resident_bytes() - before < RESIDENT_BYTES_MAX
    stage.cluster.replicants[0].client("still-served").ping()


# -- nodes at a core ---------------------------------------------------------------------------------------------------


@pytest.mark.row("44")
@pytest.mark.parametrize(
    ("name", "node", "cluster", "reason", "said"),
    [
        ("r9", {}, {"secret": "another-secret"}, "by_node", "the secrets differ"),
        ("r9", {"cluster": "other"}, {}, "cluster", "belongs to cluster 'other'"),
        ("r1", {}, {}, "unwelcome", "another node with the name 'r1' is alive"),
    ],
    ids=["secret", "cluster", "name of a living node"],
)
def test_a_node_that_does_not_belong_there_says_so_as_the_core_does(
    stage: Stage,
    tmp_path: Path,
    name: str,
    node: Mapping[str, object],
    cluster: Mapping[str, object],
    reason: str,
    said: str,
) -> None:
    stranger = stage.cluster.replicant(name, tmp_path / "elsewhere", node=node, **cluster)
    with stage.refusing(reason, said):
        stranger.launch()
        try:
            stranger.process.await_line(said)
        finally:
            stranger.close()

    stage.cluster.replicants[0].client("still-served").ping()


# -- a node at cores that do not belong to it --------------------------------------------------------------------------


class StrangeCore:
    """Listens as a core does, and behaves strangely with everybody who connects."""

    def __init__(self, strange: Strange) -> None:
        self.attempts = threading.Semaphore(0)
        self._strange = strange
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = str(Address(*self._listening.getsockname()))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> StrangeCore:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(PATIENCE_S)

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            with connected:
                connected.settimeout(PATIENCE_S)
                try:
                    self._strange(connected)
                    while connected.recv(65536):
                        continue
                except (OSError, NotAccepted):
                    pass
            self.attempts.release()


def as_core(mine: Hello, secret: str = SECRET) -> Strange:
    def answer(connected: socket.socket) -> None:
        handshake = Handshake(Side.ACCEPT, mine, secret.encode(), welcome)
        buffer = FrameBuffer()
        while data := connected.recv(65536):
            for frame in feed(buffer, data):
                connected.sendall(_answered(handshake, frame))

    return answer


def _answered(handshake: Handshake, frame: Frame) -> bytes:
    try:
        return handshake.receive(frame)
    except NotAccepted as problem:
        return refusal(problem.reason) if problem.is_ours else b""


@pytest.mark.row("44")
def test_a_node_says_once_of_each_address_why_it_is_not_its_core(stage: Stage, tmp_path: Path) -> None:
    strange = {
        "garbage": (nothing_but(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "invalid frame|does not speak this protocol"),
        "a frame of 1 GiB": (nothing_but(GIBIBYTE + b"\1\0" + bytes(64)), "invalid frame"),
        "secret": (as_core(CORE, "another-secret"), "the secrets differ"),
        "cluster": (as_core(replace(CORE, cluster="other")), "belongs to cluster"),
        "old version": (as_core(replace(CORE, version_min=0, version_max=0)), "speaks versions"),
        "role": (as_core(replace(CORE, role="replicant")), "it is a replicant, not a core"),
    }
    with ExitStack() as stack:
        cores = {name: stack.enter_context(StrangeCore(behaviour)) for name, (behaviour, _) in strange.items()}
        node = stage.cluster.replicant("r9", tmp_path / "elsewhere", core_nodes=[core.address for core in cores.values()])
        stack.callback(node.close)
        node.launch()
        for core in cores.values():
            for _ in range(3):
                assert core.attempts.acquire(timeout=PATIENCE_S)
        log = lines_until_all_are_named(node, [core.address for core in cores.values()])

    for name, (_, said) in strange.items():
        [line] = [line for line in log if f"cannot connect to {cores[name].address}:" in line]
        assert re.search(said, line), name


def lines_until_all_are_named(node: NodeProcess, addresses: list[str]) -> list[str]:
    """The node's log from its start until it has named all these addresses, and what else is there by then."""
    left = set(addresses)
    while left:
        left.discard(node.process.await_line(r"cannot connect to (\S+):")[1])
    node.process.arrived()
    return node.process.log
