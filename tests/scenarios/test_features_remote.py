"""Clients of other machines, over IPv4 and IPv6: who may connect, and how they are identified."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from braidmq.access import hashes
from braidmq.mqtt.packets import Connack
from braidmq.mqtt.reasons import Reason
from tests.support.clients.exchanges import proxy_v2
from tests.support.clients.transports import upgrade_request
from tests.support.clients.wire import DEADLINE_S, Wire
from tests.support.guarded import PASSWORD
from tests.support.network import CLIENTS_4, CLIENTS_6, NODE_4, NODE_6, Network
from tests.support.started import Started

pytestmark = [pytest.mark.needs("netns"), pytest.mark.timeout(60)]

PORT = 1883
CONFIGURATION = """
[node]
data_dir = "data"
[api]
bind = "127.0.0.1:18083"
[access]
password_file = "passwords"
ban_failures = 2
[listeners.tcp.default]
bind = "127.0.0.1:1884"
[listeners.tcp.all]
bind = ":1883"
[listeners.tcp.proxied]
bind = ":1885"
proxy_protocol = true
proxy_peers = ["fd77::2/128"]
[listeners.ws.all]
bind = ":8083"
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Two machines."""
    with Network() as network:
        yield network


@contextmanager
def running(network: Network, folder: Path) -> Iterator[Started]:
    """A node on one of them, with a few users."""
    file, passwords = folder / "braidmq.toml", folder / "passwords"
    file.write_text(CONFIGURATION)
    known = hashes.make(PASSWORD)
    passwords.write_text("".join(f"{user}:{known}\n" for user in ("alice", "bob", "carol", "dave")))
    passwords.chmod(0o600)
    with Started(file, command=network.node_command) as started:
        started.await_line("ws:all listens on")
        yield started


@pytest.fixture(scope="module")
def node(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A node on all addresses, for all tests of the module: each of them has a user of its own."""
    with running(network, tmp_path_factory.mktemp("node")) as started:
        yield started


def dial(network: Network, source: str, port: int = PORT) -> Wire:
    """A connection from this address of the other machine."""
    return network.from_there(lambda: Wire(NODE_6 if ":" in source else NODE_4, port, source=source))


def login(network: Network, source: str, user: str | None, password: bytes | None = PASSWORD) -> int:
    """The reason code of CONNACK."""
    with dial(network, source) as wire:
        wire.send_request(user_name=user, password=password if user is not None else None)
        return wire.receive(Connack).reason


@pytest.mark.parametrize("source", [CLIENTS_4[0], CLIENTS_6[0]])
@pytest.mark.row(66)
def test_remote_clients_need_a_password_and_local_ones_do_not(network: Network, node: Started, source: str) -> None:
    assert login(network, source, None) == Reason.NOT_AUTHORIZED
    assert login(network, source, "carol") == 0
    assert login(network, source, "mallory") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert network.from_here(lambda: Wire("127.0.0.1", 1884).connect()).connack.reason == 0
    # The machine itself, over an address that others can reach, is nobody special.
    with network.from_here(lambda: Wire(NODE_4, PORT)) as wire:
        wire.send_request()
        assert wire.receive(Connack).reason == Reason.NOT_AUTHORIZED


@pytest.mark.row(66)
def test_loopback_listeners_cannot_be_reached_remotely(network: Network, node: Started) -> None:
    for port in (1884, 18083):
        with pytest.raises(ConnectionRefusedError):
            dial(network, CLIENTS_4[0], port)


@pytest.mark.row(66)
def test_failed_logins_ban_the_user_at_its_address_or_ipv6_prefix(network: Network, node: Started) -> None:
    for source in (CLIENTS_4[0], CLIENTS_6[0]):
        for _ in range(2):
            assert login(network, source, "alice", b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD

    assert login(network, CLIENTS_4[0], "alice") == Reason.BANNED
    assert login(network, CLIENTS_4[1], "alice") == 0
    assert login(network, CLIENTS_6[0], "alice") == Reason.BANNED
    assert login(network, CLIENTS_6[1], "alice") == Reason.BANNED, "the same household"
    assert login(network, CLIENTS_6[2], "alice") == 0
    assert login(network, CLIENTS_4[0], "bob") == 0, "nobody else is banned"
    assert login(network, CLIENTS_6[0], "bob") == 0


@pytest.mark.row(66)
def test_proxy_headers_are_trusted_from_listed_peers_only_and_bans_use_their_address(network: Network, node: Started) -> None:
    header = b"PROXY TCP6 2001:db8::7 fd77::1 4242 1885\r\n"
    behind = {"user_name": "dave", "password": b"wrong"}
    for _ in range(2):
        with dial(network, CLIENTS_6[0], 1885) as wire:
            wire.send(header)
            wire.send_request(**behind)
            assert wire.receive(Connack).reason == Reason.BAD_USER_NAME_OR_PASSWORD

    with dial(network, CLIENTS_6[0], 1885) as wire:
        wire.send(header)
        wire.send_request(user_name="dave", password=PASSWORD)
        assert wire.receive(Connack).reason == Reason.BANNED
    with dial(network, CLIENTS_6[0], 1885) as wire:
        wire.send(proxy_v2())  # another client behind the same proxy
        wire.send_request(user_name="dave", password=PASSWORD)
        assert wire.receive(Connack).reason == 0
    with dial(network, CLIENTS_6[1], 1885) as stranger:
        stranger.send(header)
        assert stranger.read_to_end() == b""


def upgrade(network: Network, host: str, origin: str) -> int:
    """The status of the answer to a WebSocket request with these headers."""
    with dial(network, CLIENTS_6[0], 8083) as wire:
        request = upgrade_request().replace(b"Host: localhost", f"Host: {host}\r\nOrigin: {origin}".encode())
        wire.send(request)
        return int(wire.receive_bytes(12).split()[1])


@pytest.mark.row(66)
def test_web_pages_of_the_same_host_may_connect_and_others_may_not(network: Network, node: Started) -> None:
    assert upgrade(network, "[fd77::1]:8083", "http://[fd77::1]:8083") == 101
    assert upgrade(network, "[fd77:0::1]:8083", "http://[FD77::1]:8083") == 101
    assert upgrade(network, "[fd77::1]:8083", "http://[fd77::1]") == 403
    assert upgrade(network, "[fd77::1]:8083", "http://page.example") == 403
    assert upgrade(network, "[fd77::1]:8083", "http://localhost:8083") == 403


@pytest.mark.row(66)
def test_the_api_beyond_loopback_accepts_any_host_and_has_no_control_paths(network: Network, tmp_path: Path) -> None:
    def ask(path: str, host: str) -> int:
        def request() -> int:
            connection = http.client.HTTPConnection(NODE_6, 18083, timeout=DEADLINE_S)
            connection.request("GET", path, headers={"Host": host})
            status = connection.getresponse().status
            connection.close()
            return status

        return network.from_there(request)

    file = tmp_path / "braidmq.toml"
    file.write_text(f'[node]\ndata_dir = "data"\n[api]\nbind = "[{NODE_6}]:18083"\n[listeners.tcp.default]\nbind = "127.0.0.1:0"')
    with Started(file, command=network.node_command) as started:
        started.await_line("tcp:default listens on")
        assert ask("/status", "monitor.example") == 200
        assert ask("/ctl/status", f"[{NODE_6}]") == 404
