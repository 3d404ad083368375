"""Reading the log as an operator does: what comes, in which order, and at whose expense."""

from __future__ import annotations

import asyncio
import tempfile
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.control import history as api
from braidmq.control.history import ReadRequest
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.properties import Properties, write_properties
from braidmq.mqtt.topics import matches
from braidmq.operations import history, log_walk
from braidmq.operations.history import NodeHistory
from braidmq.storage.format.rows import EpochLimits
from braidmq.storage.log import LogOptions
from tests.support.recording import Recording, lines_of, recording, records_of

CLIENTS = [f"client-{number}" for number in range(6)]


def with_log(data_dir: Path, talk: Callable[[Recording, NodeHistory], Awaitable[None]], **options: Any) -> None:
    """Let ``talk`` look at a log."""

    async def run() -> None:
        async with recording(data_dir, **options) as node:
            await talk(node, NodeHistory(node))

    asyncio.run(run())


def request(*filters: str, **fields: Any) -> ReadRequest:
    return ReadRequest(filters=filters or ("#",), **fields)


def test_records_come_with_everything_that_is_known_of_them(tmp_path: Path) -> None:
    properties = write_properties(Properties(content_type="text/plain", user_properties=(("k", "v"),)), PacketType.PUBLISH)

    async def talk(node: Recording, operations: NodeHistory) -> None:
        [stamp] = await node.append(("anna", "a/b", "grüß".encode()), retain=True, properties=properties[1:], expires_at=77)

        [record] = records_of(await lines_of(operations.read(request("a/+"))))

        assert record == api.RecordLine(
            shard=node.log.shard_of("anna"), timestamp=stamp, topic="a/b", payload="grüß", encoding="utf-8", qos=1, retain=True,
            client_id="anna", published_at=stamp, expires_at=77,
            properties={"content_type": "text/plain", "user_properties": [["k", "v"]]},
        )  # fmt: skip

    with_log(tmp_path, talk)


def test_a_payload_that_is_not_text_comes_as_base64(tmp_path: Path) -> None:
    payloads = [b"\xff\x00", b"\x00text", b""]

    async def talk(node: Recording, operations: NodeHistory) -> None:
        await node.append(*(("c", "t", payload) for payload in payloads))

        records = records_of(await lines_of(operations.read(request())))

        assert [record.encoding for record in records] == ["base64", "utf-8", "utf-8"]
        found = [b64decode(each.payload) if each.encoding == "base64" else each.payload.encode() for each in records]
        assert found == payloads

    with_log(tmp_path, talk)


@settings(max_examples=25)
@given(
    written=st.lists(st.tuples(st.sampled_from(CLIENTS), st.sampled_from(["a", "a/b", "a/c", "d/b", "$x/a"])), max_size=40),
    topic_filter=st.sampled_from(["#", "a/#", "+/b", "d/b", "$x/#", "nothing"]),
    cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    limit=st.integers(0, 5),
    epoch_records=st.integers(1, 50),
)
def test_a_read_returns_the_same_records_as_a_list(
    written: list[tuple[str, str]], topic_filter: str, cuts: tuple[int, int], limit: int, epoch_records: int
) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        rows = []
        for number, (client, topic) in enumerate(written):
            [stamp] = await node.append((client, topic, b"%d" % number))
            rows.append((stamp, topic, str(number)))
        # Bounds in whole milliseconds, as they can be asked for: they fall between or upon records.
        stamps = [stamp for stamp, _, _ in rows] or [0]
        start, end = (stamps[min(cut, len(stamps) - 1)] // 1000 + 1 for cut in cuts)

        lines = await lines_of(operations.read(request(topic_filter, start=str(start), end=str(end), limit=limit)))

        expected = [
            (stamp, topic, payload)
            for stamp, topic, payload in rows
            if matches(topic_filter, topic) and start * 1000 <= stamp < end * 1000
        ]
        is_cut = 0 < limit <= len(expected)
        expected = expected[:limit] if limit else expected
        assert [(each.timestamp, each.topic, each.payload) for each in records_of(lines)] == expected
        assert isinstance(lines[0], api.Begin)
        assert lines[-1] == api.End(records=len(expected), is_cut=is_cut)

    options = LogOptions(limits=EpochLimits(count_max=epoch_records))
    with tempfile.TemporaryDirectory() as folder:
        with_log(Path(folder), talk, options=options, durability="os")


def test_a_read_ends_although_records_keep_arriving(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        await node.append(*((client, "t", b"before") for client in CLIENTS))
        answer = operations.read(request())  # this is when "latest" is settled
        await node.append(*((client, "t", b"after") for client in CLIENTS))

        records = records_of(await lines_of(answer))

        assert [record.payload for record in records] == ["before"] * len(CLIENTS)

    with_log(tmp_path, talk)


def test_a_follower_gets_what_is_recorded_later_and_nothing_twice(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        await node.append(("a", "t", b"0"), ("b", "t", b"not shown"))
        read = asyncio.create_task(lines_of(operations.read(request("t", "u", start="latest", follow=True, limit=40))))
        for number in range(40):
            await node.append((CLIENTS[number % 6], "tu"[number % 2], b"%d" % number), ("c", "other", b""))

        records = records_of(await asyncio.wait_for(read, 10))

        assert sorted(int(record.payload) for record in records) == list(range(40))

    with_log(tmp_path, talk)


def test_a_follower_that_leaves_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        follow, followings, all_followed = node.log.follow, [], asyncio.Event()

        def note(*arguments: Any) -> Any:
            followings.append(follow(*arguments))
            if len(followings) == node.log.shards:
                all_followed.set()
            return followings[-1]

        monkeypatch.setattr(node.log, "follow", note)
        async with aclosing(operations.read(request(start="latest", follow=True))) as answer:  # type: ignore[type-var]
            await anext(answer)
            waiting = asyncio.ensure_future(anext(answer))
            await asyncio.wait_for(all_followed.wait(), 10)
            waiting.cancel()
            await asyncio.wait([waiting])

        assert [following.is_active for following in followings] == [False] * node.log.shards

    with_log(tmp_path, talk)


def test_records_deleted_by_retention_are_reported_once_and_the_rest_is_read(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        stamps = [(await node.append(("c", "t", b"%d" % number)))[0] for number in range(6)]
        shard = node.log.shard_of("c")
        node.log.retain(now=stamps[-1] + 60 * 1_000_000)  # an hour is kept of records that are a minute old
        assert not node.log.stats().shards[shard].floor
        node.log.retain(now=stamps[3] + 3600 * 1_000_000)

        lines = await lines_of(operations.read(request(start=str(stamps[0] // 1000))))

        gaps = [line for line in lines if isinstance(line, api.GapLine)]
        floor = node.log.stats().shards[shard].floor
        assert [(gap.shard, gap.floor) for gap in gaps] == [(shard, floor)]
        assert [int(record.payload) for record in records_of(lines)] == [
            number for number, stamp in enumerate(stamps) if stamp >= floor
        ]
        assert not [line for line in await lines_of(operations.read(request())) if isinstance(line, api.GapLine)]

    with_log(tmp_path, talk, options=LogOptions(limits=EpochLimits(count_max=1)), retention=3600)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (request("a/#/b"), "is not a topic filter"),
        (request("$share/g/a"), "the filter inside"),
        (request("$replay/earliest/a"), "the filter inside"),
        (request(*["a"] * 65), "1 to 64"),
        (ReadRequest(filters=()), "1 to 64"),
        (request(start="yesterday"), "is not a valid start"),
        (request(end="-24"), "has no unit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_request_is_rejected_at_once(tmp_path: Path, wanted: ReadRequest, words: str) -> None:
    async def talk(_: Recording, operations: NodeHistory) -> None:
        with pytest.raises(UsageError, match=words):
            operations.read(wanted)

    with_log(tmp_path, talk)


def test_walks_share_one_slice_in_each_turn_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_walk, "_SLICE_RECORDS", 5)
    turn = 0
    slices: list[int] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async def talk(node: Recording, operations: NodeHistory) -> None:
        await node.append(*((client, "t", b"x") for client in CLIENTS * 20))
        replay_of = node.log.replay

        def watched(*arguments: Any) -> Any:
            replay = replay_of(*arguments)
            read = replay.next

            def read_and_note(count: int) -> Any:
                slices.append(turn)
                return read(count)

            monkeypatch.setattr(replay, "next", read_and_note)
            return replay

        monkeypatch.setattr(node.log, "replay", watched)
        counting = asyncio.create_task(count_turns())
        answers = await asyncio.gather(*(lines_of(operations.read(request())) for _ in range(4)))
        counting.cancel()

        assert [len(records_of(lines)) for lines in answers] == [120] * 4
        assert len(slices) >= 4 * 120 / 5
        assert len(set(slices)) == len(slices)

    with_log(tmp_path, talk)


def test_topics_are_counted_by_name(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        await node.append(("c", "b", b"12"), ("c", "a/1", b"1"), ("c", "b", b"345"), ("c", "other", b""))
        [newest] = await node.append(("c", "b", b"6"))

        lines = await lines_of(operations.topics(request("b", "a/+")))

        topics = [line for line in lines if isinstance(line, api.Topic)]
        assert [(each.topic, each.records, each.payload_bytes) for each in topics] == [("a/1", 1, 1), ("b", 3, 6)]
        assert topics[1].newest == newest
        assert lines[-1] == api.End(records=4)

    with_log(tmp_path, talk)


def test_a_truncated_list_of_topics_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "TOPICS_MAX", 10)

    async def talk(node: Recording, operations: NodeHistory) -> None:
        await node.append(*(("c", f"t/{number:02}", b"") for number in range(11)), ("c", "t/00", b""))

        lines = await lines_of(operations.topics(request()))

        assert [line.records for line in lines if isinstance(line, api.Topic)] == [2] + [1] * 9
        assert lines[-1] == api.End(records=12, is_cut=True)

    with_log(tmp_path, talk)


def test_progress_rises_from_the_beginning_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_TELL_EVERY_S", 0.0)
    monkeypatch.setattr(log_walk, "_SLICE_RECORDS", 3)

    async def talk(node: Recording, operations: NodeHistory) -> None:
        stamps = [(await node.append((client, "t", b"")))[0] for client in CLIENTS * 5]

        lines = await lines_of(operations.read(request()))

        begin = lines[0]
        positions = [line.position for line in lines if isinstance(line, api.ProgressLine)]
        assert begin == api.Begin(start=stamps[0], end=stamps[-1])
        assert len(positions) >= 10
        assert positions == sorted(positions)
        assert stamps[0] <= positions[0] < positions[-1] == stamps[-1]

    with_log(tmp_path, talk)
