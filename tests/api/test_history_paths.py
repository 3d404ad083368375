"""The control paths of the durable log, over a real Unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from braidmq.api.history_paths import READS_MAX
from braidmq.api.server import ApiServer
from braidmq.base.errors import Corruption, UsageError
from braidmq.control.history import (
    Begin,
    End,
    Failed,
    GenerationInfo,
    ProgressLine,
    ReadRequest,
    Relearned,
    RelearnRequest,
    ShardPatterns,
    decode_line,
)
from tests.support.fakes.history import FakeHistory
from tests.support.fakes.operations import FakeOperations


@asynccontextmanager
async def control(data_dir: Path) -> AsyncIterator[tuple[FakeHistory, aiohttp.ClientSession]]:
    operations = FakeOperations()
    server = ApiServer(operations, bind="", data_dir=data_dir)
    await server.start()
    try:
        connector = aiohttp.UnixConnector(str(server.socket_path), limit=0)
        async with aiohttp.ClientSession("http://node", connector=connector) as session:
            yield operations.history, session
    finally:
        await server.stop()


def conversation(data_dir: Path, talk: Callable[[FakeHistory, aiohttp.ClientSession], Awaitable[None]]) -> None:
    """Let ``talk`` ask the control paths of a node."""

    async def run() -> None:
        async with control(data_dir) as (history, session):
            await talk(history, session)

    asyncio.run(run())


async def answer_to(session: aiohttp.ClientSession, method: str, path: str, **fields: Any) -> tuple[int, bytes]:
    async with session.request(method, f"/ctl{path}", **fields) as answer:
        return answer.status, await answer.read()


def test_a_read_is_asked_for_by_parameters_and_answered_in_lines(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.lines = [Begin(start=1, end=9), ProgressLine(position=5, records=0), End()]
        wanted = [("filter", "a/#"), ("filter", "b"), ("from", "-1h"), ("to", "17"), ("limit", "5"), ("follow", "1")]

        status, data = await answer_to(session, "GET", "/history/records", params=wanted)

        assert status == 200
        assert [decode_line(line) for line in data.splitlines()] == history.lines
        assert history.asked == [ReadRequest(filters=("a/#", "b"), start="-1h", end="17", limit=5, follow=True)]

    conversation(tmp_path, talk)


def test_a_read_without_parameters_covers_everything(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        await answer_to(session, "GET", "/history/topics", params={"filter": "#"})

        assert history.asked_topics == [ReadRequest(filters=("#",), start="earliest", end="latest", limit=0, follow=False)]

    conversation(tmp_path, talk)


@pytest.mark.parametrize(("name", "value"), [("limit", "-1"), ("limit", "ten"), ("limit", "9" * 30), ("follow", "yes")])
def test_a_parameter_that_is_not_a_number_is_rejected(tmp_path: Path, name: str, value: str) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        status, data = await answer_to(session, "GET", "/history/records", params={"filter": "#", name: value})

        assert status == 400
        assert json.loads(data)["message"].startswith(name)
        assert history.asked == []

    conversation(tmp_path, talk)


def test_a_request_that_the_log_rejects_is_a_bad_request_and_not_half_an_answer(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.refusal = UsageError("'x' is not a valid start", "write latest")

        status, data = await answer_to(session, "GET", "/history/records", params={"filter": "#", "from": "x"})

        assert (status, json.loads(data)["message"]) == (400, "'x' is not a valid start: write latest")

    conversation(tmp_path, talk)


def test_an_error_during_the_answer_is_its_last_line(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.lines = [Begin(start=1, end=9), Corruption("a record is truncated"), End()]

        status, data = await answer_to(session, "GET", "/history/records", params={"filter": "#"})

        assert status == 200
        assert [decode_line(line) for line in data.splitlines()] == [history.lines[0], Failed(message="a record is truncated")]

    conversation(tmp_path, talk)


def test_an_internal_error_is_not_shown_to_the_reader_in_detail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.go_on = None  # type: ignore[assignment]
        history.lines = [None]

        _, data = await answer_to(session, "GET", "/history/records", params={"filter": "#"})

        assert isinstance(decode_line(data.strip()), Failed)
        assert b"NoneType" not in data
        assert "NoneType" in caplog.text

    conversation(tmp_path, talk)


def test_a_read_ends_when_its_reader_leaves(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.lines = [Begin(start=1, end=9), None]
        answer = await session.get("/ctl/history/records", params={"filter": "#", "follow": "1"})
        await answer.content.readline()
        assert history.running == 1

        answer.close()
        await asyncio.wait_for(history.ended.wait(), 5)

        assert history.running == 0

    conversation(tmp_path, talk)


def test_a_reader_that_does_not_read_pauses_the_read(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        made = 0

        async def lines() -> AsyncIterator[bytes]:
            nonlocal made
            try:
                while True:
                    made += 1
                    yield b"x" * 100_000 + b"\n"
                    history.go_on.set()
            finally:
                history.ended.set()

        history._lines = lines  # type: ignore[method-assign]
        answer = await session.get("/ctl/history/records", params={"filter": "#"})
        await history.go_on.wait()
        before = -1
        while made != before:  # until it makes no more, although nobody stops it
            before = made
            await asyncio.sleep(0.05)
        answer.close()

        assert made < 100  # 10 MB: what sockets and buffers of both sides hold
        await asyncio.wait_for(history.ended.wait(), 5)

    conversation(tmp_path, talk)


def test_the_number_of_reads_is_bounded_for_both_kinds_together(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.lines = [Begin(start=1, end=9), None, End()]
        async with AsyncExitStack() as running:
            for number in range(READS_MAX):
                path = "/ctl/history/records" if number % 2 else "/ctl/history/topics"
                await running.enter_async_context(session.get(path, params={"filter": "#"}))

            status, data = await answer_to(session, "GET", "/history/records", params={"filter": "#"})
            assert (status, json.loads(data)["code"]) == (503, "BUSY")
            history.go_on.set()
        status, _ = await answer_to(session, "GET", "/history/records", params={"filter": "#"})
        assert status == 200

    conversation(tmp_path, talk)


def test_figures_and_generations_are_documents(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.generation_list = [
            GenerationInfo(shard=1, number=2, layout="hashed", parameters="x", first_epoch=7, records=3, size_bytes=5)
        ]
        history.relearned = Relearned(is_begun=True, reason="half as many keys are looked at")

        assert json.loads((await answer_to(session, "GET", "/history/stats"))[1])["log_id"] == "00ff"
        [generation] = json.loads((await answer_to(session, "GET", "/history/generations"))[1])
        assert (generation["shard"], generation["number"], generation["records"]) == (1, 2, 3)
        assert json.loads((await answer_to(session, "POST", "/history/relearn"))[1])["is_begun"] is True
        assert json.loads((await answer_to(session, "GET", "/durability"))[1])["commits"] == 4

    conversation(tmp_path, talk)


def test_patterns_are_asked_for_and_given(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.pattern_list = [ShardPatterns(shard=3, patterns=["a/+", "b"])]

        assert json.loads((await answer_to(session, "GET", "/history/patterns"))[1]) == [{"shard": 3, "patterns": ["a/+", "b"]}]
        await answer_to(session, "POST", "/history/relearn")
        await answer_to(session, "POST", "/history/relearn", json={"patterns": ["a/+"], "thresholds": [5, 3]})
        wrong, _ = await answer_to(session, "POST", "/history/relearn", json={"pattern": ["a/+"]})

        assert history.asked_relearns == [RelearnRequest(), RelearnRequest(patterns=("a/+",), thresholds=(5, 3))]
        assert wrong == 400

    conversation(tmp_path, talk)


def test_a_reader_is_forgotten_by_its_name(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        statuses = [
            (await answer_to(session, "DELETE", f"/history/reader?name={name}"))[0] for name in ("a%20%2F%C3%A4", "nobody")
        ]

        assert statuses == [204, 404]
        assert (await answer_to(session, "DELETE", "/history/reader"))[0] == 400
        assert history.forgotten == ["a /ä", "nobody"]

    conversation(tmp_path, talk)


def test_a_backup_is_posted_with_its_path(tmp_path: Path) -> None:
    async def talk(history: FakeHistory, session: aiohttp.ClientSession) -> None:
        history.lines = [End()]

        status, data = await answer_to(session, "POST", "/backup", json={"path": "/b"})
        wrong, _ = await answer_to(session, "POST", "/backup", json={"file": "/b"})

        assert (status, data) == (200, b'{"type":"end"}\n')
        assert wrong == 400
        assert history.backup_paths == ["/b"]

    conversation(tmp_path, talk)
