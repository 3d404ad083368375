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
from tests.support.fake_operations import FakeOperations

Result = TypeVar("Result")


def with_server(data_dir: Path, work: Callable[[ApiServer], Awaitable[Result]], bind: str = "127.0.0.1:0") -> Result:
    async def run() -> Result:
        server = ApiServer(FakeOperations(), bind=bind, data_dir=data_dir)
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
        with pytest.raises(UsageError, match="a node is running"):
            await ApiServer(FakeOperations(), bind="", data_dir=tmp_path).start()
        return server.socket_path.is_socket()

    assert with_server(tmp_path, start_another), "the socket of the first node must survive"


def test_a_directory_too_deep_for_a_socket_is_refused_in_words(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()

    with pytest.raises(ConfigError, match="too long for a Unix socket"):
        asyncio.run(ApiServer(FakeOperations(), bind="", data_dir=deep).start())


def test_an_address_in_use_is_refused_in_words_and_leaves_no_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(ApiServer(FakeOperations(), bind=f"127.0.0.1:{port}", data_dir=tmp_path).start())

    assert not (tmp_path / "ctl.sock").exists()
