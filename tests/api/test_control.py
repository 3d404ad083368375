"""The control paths, over a real Unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from braidmq.api.control import TRACES_MAX
from braidmq.api.server import ApiServer
from braidmq.control.contract import BanInfo, ClientInfo, RetainedInfo
from tests.support.fakes.operations import FakeOperations

Ask = Callable[..., Awaitable[tuple[int, Any]]]


@asynccontextmanager
async def control(data_dir: Path) -> AsyncIterator[tuple[FakeOperations, aiohttp.ClientSession]]:
    operations = FakeOperations()
    server = ApiServer(operations, bind="", data_dir=data_dir)
    await server.start()
    try:
        async with aiohttp.ClientSession("http://node", connector=aiohttp.UnixConnector(str(server.socket_path))) as session:
            yield operations, session
    finally:
        await server.stop()


def conversation(data_dir: Path, talk: Callable[[FakeOperations, Ask], Awaitable[None]]) -> None:
    """Let ``talk`` ask the control paths of a node."""

    async def run() -> None:
        async with control(data_dir) as (operations, session):

            async def ask(method: str, path: str, *, body: Any = None, **parameters: Any) -> tuple[int, Any]:
                async with session.request(method, f"/ctl{path}", params=parameters, json=body) as answer:
                    data = await answer.read()
                    return answer.status, json.loads(data) if data else None

            await talk(operations, ask)

    asyncio.run(run())


def client(client_id: str) -> ClientInfo:
    return ClientInfo(client_id=client_id, connected=True)


def test_clients_come_in_pages_that_follow_each_other_without_gap_or_repeat(tmp_path: Path) -> None:
    async def talk(operations: FakeOperations, ask: Ask) -> None:
        operations.client_list = [client(f"c{number:03}") for number in range(25)]
        seen, cursor, pages = [], "", 0
        while pages == 0 or cursor:
            _, page = await ask("GET", "/clients", limit=10, cursor=cursor)
            seen += [each["client_id"] for each in page["items"]]
            cursor, pages = page["cursor"], pages + 1

        assert seen == [f"c{number:03}" for number in range(25)]
        assert pages == 3

    conversation(tmp_path, talk)


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "ten", ""])
def test_a_page_of_an_impossible_size_is_refused(tmp_path: Path, limit: str) -> None:
    async def talk(_: FakeOperations, ask: Ask) -> None:
        status, answer = await ask("GET", "/clients", limit=limit)

        assert status == 400
        assert "from 1 to 1000" in answer["message"]

    conversation(tmp_path, talk)


@pytest.mark.parametrize("client_id", ["plain", "a/b", "..", "a b&c=d", "tür", "%2F", "a?b#c"])
def test_a_client_of_any_name_can_be_shown_and_kicked(tmp_path: Path, client_id: str) -> None:
    async def talk(operations: FakeOperations, ask: Ask) -> None:
        operations.client_list = [client(client_id), client("other")]

        status, detail = await ask("GET", "/client", id=client_id)
        assert (status, detail["client"]["client_id"]) == (200, client_id)

        assert await ask("DELETE", "/client", id=client_id) == (204, None)
        assert [each.client_id for each in operations.client_list] == ["other"]

    conversation(tmp_path, talk)


def test_an_unknown_resource_is_answered_with_404_and_a_message(tmp_path: Path) -> None:
    async def talk(_: FakeOperations, ask: Ask) -> None:
        for method, path, parameters in [
            ("GET", "/client", {"id": "nobody"}),
            ("DELETE", "/client", {"id": "nobody"}),
            ("DELETE", "/retained", {"topic": "nobody"}),
            ("DELETE", "/bans", {"kind": "user", "value": "nobody"}),
        ]:
            status, answer = await ask(method, path, **parameters)

            assert status == 404
            assert "'nobody'" in answer["message"]

    conversation(tmp_path, talk)


def test_a_missing_parameter_is_named(tmp_path: Path) -> None:
    async def talk(_: FakeOperations, ask: Ask) -> None:
        status, answer = await ask("DELETE", "/retained")

        assert (status, answer["message"]) == (400, "the parameter 'topic' is missing")

    conversation(tmp_path, talk)


def test_retained_messages_are_listed_and_removed(tmp_path: Path) -> None:
    async def talk(operations: FakeOperations, ask: Ask) -> None:
        operations.retained_list = [RetainedInfo(topic=topic, qos=1, payload_bytes=5, stored_at=1.0) for topic in ("a/1", "b/1")]

        _, page = await ask("GET", "/retained", contains="b/")
        assert [each["topic"] for each in page["items"]] == ["b/1"]

        assert await ask("DELETE", "/retained", topic="b/1") == (204, None)
        assert [each.topic for each in operations.retained_list] == ["a/1"]

    conversation(tmp_path, talk)


def test_bans_are_added_and_lifted(tmp_path: Path) -> None:
    async def talk(operations: FakeOperations, ask: Ask) -> None:
        body = {"kind": "address", "value": "192.0.2.7", "until": 2e9}
        assert await ask("POST", "/bans", body=body) == (200, {"silent": []})
        assert operations.ban_list == [BanInfo(kind="address", value="192.0.2.7", until=2e9)]

        assert await ask("DELETE", "/bans", kind="address", value="192.0.2.7") == (204, None)
        assert operations.ban_list == []

    conversation(tmp_path, talk)


@pytest.mark.parametrize("body", [{"kind": "planet", "value": "x"}, {"kind": "user"}, {"kind": "user", "value": 5}, [], "text"])
def test_a_body_that_does_not_fit_is_refused(tmp_path: Path, body: Any) -> None:
    async def talk(operations: FakeOperations, ask: Ask) -> None:
        status, answer = await ask("POST", "/bans", body=body)

        assert (status, answer["code"]) == (400, "BAD_REQUEST")
        assert operations.ban_list == []

    conversation(tmp_path, talk)


def test_a_value_is_set_and_unset_and_shows_its_origin(tmp_path: Path) -> None:
    async def talk(operations: FakeOperations, ask: Ask) -> None:
        key = "mqtt.receive_maximum"
        _, before = await ask("GET", "/conf", prefix="mqtt")
        _, changed = await ask("PUT", "/conf", body={"key": key, "value": "50"})
        _, after = await ask("DELETE", "/conf", key=key)

        assert [(each["value"], each["origin"]) for each in (before[0], changed, after)] == [
            ("1000", "default"),
            ("50", "run time"),
            ("1000", "default"),
        ]

    conversation(tmp_path, talk)


def test_a_refused_value_is_answered_with_the_hint(tmp_path: Path) -> None:
    async def talk(_: FakeOperations, ask: Ask) -> None:
        status, answer = await ask("PUT", "/conf", body={"key": "mqtt.recieve_maximum", "value": "5"})

        assert status == 400
        assert "did you mean mqtt.receive_maximum?" in answer["message"]

    conversation(tmp_path, talk)


def test_the_level_of_the_log_is_read_and_set(tmp_path: Path) -> None:
    async def talk(operations: FakeOperations, ask: Ask) -> None:
        assert await ask("GET", "/log/level") == (200, {"level": "info"})
        assert await ask("PUT", "/log/level", body={"level": "debug"}) == (200, {"level": "debug"})
        assert operations.level == "debug"
        assert (await ask("PUT", "/log/level", body={"level": "loud"}))[0] == 400

    conversation(tmp_path, talk)


def test_a_trace_sends_lines_as_they_come(tmp_path: Path) -> None:
    async def run() -> None:
        async with control(tmp_path) as (operations, session):
            async with session.get("/ctl/trace", params={"kind": "topic", "value": "a/#"}) as answer:
                for line in ("first", "second"):
                    operations.trace_lines.put_nowait(line)
                    assert await answer.content.readline() == line.encode() + b"\n"
                operations.trace_lines.put_nowait(None)
                assert await answer.content.readline() == b""
            assert operations.trace_asked == ("topic", "a/#")

    asyncio.run(run())


def test_a_trace_ends_when_its_reader_leaves_although_no_line_comes(tmp_path: Path) -> None:
    async def run() -> None:
        async with control(tmp_path) as (operations, session):
            answer = await session.get("/ctl/trace", params={"kind": "client", "value": "c1"})
            assert operations.traces_running == 1

            answer.close()
            await asyncio.wait_for(operations.trace_ended.wait(), 5)

            assert operations.traces_running == 0

    asyncio.run(run())


def test_the_number_of_traces_is_bounded(tmp_path: Path) -> None:
    async def run() -> None:
        async with control(tmp_path) as (_, session):
            parameters = {"kind": "client", "value": "c1"}
            running = [await session.get("/ctl/trace", params=parameters) for _ in range(TRACES_MAX)]
            async with session.get("/ctl/trace", params=parameters) as refused:
                assert refused.status == 503
            for answer in running:
                answer.close()

    asyncio.run(run())


def test_a_running_trace_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    async def run() -> None:
        async with asyncio.timeout(5), control(tmp_path) as (_, session):
            await session.get("/ctl/trace", params={"kind": "client", "value": "c1"})

    asyncio.run(run())
