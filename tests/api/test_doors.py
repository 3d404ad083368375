"""Who comes in where: the mode of the socket, the token, and what a dead or a living node leaves behind."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest

from braidmq.api.server import ApiServer, read_or_make_token
from braidmq.base.errors import ConfigError, UsageError
from tests.support.fakes.operations import FakeOperations

Result = TypeVar("Result")


def with_server(
    data_dir: Path, work: Callable[[ApiServer], Awaitable[Result]], bind: str = "127.0.0.1:0", hosts: tuple[str, ...] = ()
) -> Result:
    async def run() -> Result:
        server = ApiServer(FakeOperations(), bind=bind, data_dir=data_dir, hosts=hosts)
        await server.start()
        try:
            return await work(server)
        finally:
            await server.stop()

    return asyncio.run(run())


async def status_of(server: ApiServer, path: str, **headers: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://{server.address}{path}", headers=headers) as answer:
        return answer.status


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_control_socket_and_the_token_are_for_their_owner_only(tmp_path: Path) -> None:
    async def modes(server: ApiServer) -> tuple[int, int]:
        return mode_of(server.socket_path), mode_of(tmp_path / "ctl.token")

    assert with_server(tmp_path, modes) == (0o600, 0o600)


def test_the_control_socket_needs_no_token(tmp_path: Path) -> None:
    async def ask(server: ApiServer) -> int:
        connector = aiohttp.UnixConnector(str(server.socket_path))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://node/ctl/status") as answer:
            return answer.status

    assert with_server(tmp_path, ask) == 200


def test_control_over_tcp_needs_the_token(tmp_path: Path) -> None:
    async def ask(server: ApiServer) -> list[int]:
        token = (tmp_path / "ctl.token").read_text().strip()
        shown = [{}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {token}x"}, {"Authorization": f"Bearer {token}"}]
        return [await status_of(server, "/ctl/status", **headers) for headers in shown]

    assert with_server(tmp_path, ask) == [401, 401, 401, 200]


def test_control_is_not_served_beyond_the_machine(tmp_path: Path) -> None:
    async def ask(server: ApiServer) -> tuple[int, int, bool]:
        headers = {"Authorization": "Bearer anything"}
        return (
            await status_of(server, "/ctl/status", **headers),
            await status_of(server, "/status"),
            (tmp_path / "ctl.token").exists(),
        )

    assert with_server(tmp_path, ask, bind="0.0.0.0:0") == (404, 200, False)


def test_without_an_address_only_the_socket_is_open(tmp_path: Path) -> None:
    async def look(server: ApiServer) -> Any:
        return server.address, server.socket_path.is_socket()

    assert with_server(tmp_path, look, bind="") == (None, True)


def test_the_token_stays_the_same_over_restarts(tmp_path: Path) -> None:
    first = read_or_make_token(tmp_path / "ctl.token")

    assert read_or_make_token(tmp_path / "ctl.token") == first


def test_a_token_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ctl.token"
    leaked = read_or_make_token(path)
    path.chmod(0o644)

    assert read_or_make_token(path) != leaked
    assert mode_of(path) == 0o600


def test_the_socket_of_a_dead_node_is_replaced_and_ours_is_removed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "ctl.sock"))

    async def look(server: ApiServer) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(server.socket_path))
        return True

    assert with_server(tmp_path, look)
    assert not (tmp_path / "ctl.sock").exists()


def test_two_nodes_cannot_share_a_data_directory(tmp_path: Path) -> None:
    async def start_another(server: ApiServer) -> bool:
        with pytest.raises(UsageError, match="a node is already running"):
            await ApiServer(FakeOperations(), bind="", data_dir=tmp_path).start()
        return server.socket_path.is_socket()

    assert with_server(tmp_path, start_another), "the socket of the first node must survive"


def test_a_directory_too_deep_for_a_socket_is_rejected_with_a_clear_message(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()

    with pytest.raises(ConfigError, match="too long for a Unix socket"):
        asyncio.run(ApiServer(FakeOperations(), bind="", data_dir=deep).start())


def test_an_address_in_use_is_rejected_with_a_clear_message_and_leaves_no_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=f"api.bind: address 127.0.0.1:{port} is in use"):
            asyncio.run(ApiServer(FakeOperations(), bind=f"127.0.0.1:{port}", data_dir=tmp_path).start())

    assert not (tmp_path / "ctl.sock").exists()


def ask_as(server_bind: str, data_dir: Path, host: str, path: str = "/status", hosts: tuple[str, ...] = ()) -> int:
    """The status of an answer to a request for this host."""

    async def ask(server: ApiServer) -> int:
        assert server.address is not None
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{server.address.port}{path}", headers={"Host": host}) as answer,
        ):
            return answer.status

    return with_server(data_dir, ask, bind=server_bind, hosts=hosts)


@pytest.mark.parametrize("path", ["/status", "/metrics", "/ready", "/ctl/status", "/ctl/nothing", "/nothing"])
def test_on_loopback_nothing_is_served_under_the_name_of_a_web_page(tmp_path: Path, path: str) -> None:
    assert ask_as("127.0.0.1:0", tmp_path, "page.example:18083", path) == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:18083", "127.0.0.1", "127.0.0.1:1", "127.9.9.9:80", "[::1]", "[::1]:18083"]
)
def test_on_loopback_names_of_this_machine_are_served_on_any_port(tmp_path: Path, host: str) -> None:
    assert ask_as("127.0.0.1:0", tmp_path, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1.page.example",
        "localhost.page.example",
        "page.example#localhost",
        "localhost@page.example",
        "[::2]",
        "10.0.0.1",
        " ",
        "::1",
    ],
)
def test_names_that_only_look_local_are_refused(tmp_path: Path, host: str) -> None:
    assert ask_as("127.0.0.1:0", tmp_path, host) in (400, 403)


def test_a_listed_name_is_served_on_every_listener_and_others_are_not(tmp_path: Path) -> None:
    asked = ["Node.Example:443", "other.example", "localhost"]

    assert [ask_as("127.0.0.1:0", tmp_path, host, hosts=("node.example",)) for host in asked] == [200, 403, 200]
    assert [ask_as("0.0.0.0:0", tmp_path, host, hosts=("node.example",)) for host in asked] == [200, 403, 200]


def test_beyond_the_machine_any_name_is_served_unless_names_are_listed(tmp_path: Path) -> None:
    assert ask_as("0.0.0.0:0", tmp_path, "node.example") == 200


def test_a_request_without_a_host_or_with_two_is_rejected(tmp_path: Path) -> None:
    async def ask(server: ApiServer) -> list[bytes]:
        assert server.address is not None
        answers = []
        for head in (b"", b"Host: localhost\r\nHost: page.example\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.address.port)
            writer.write(b"GET /ready HTTP/1.0\r\n" + head + b"\r\n")
            answers.append((await reader.readline()).split()[1])
            writer.close()
        return answers

    without, twice = with_server(tmp_path, ask)

    assert without == b"200", "no browser leaves it out, but health checks do"
    assert twice in (b"400", b"403")
