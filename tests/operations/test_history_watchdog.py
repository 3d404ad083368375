"""Figures, generations and backups of a log that is in use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from braidmq.base.errors import Unavailable, UsageError
from braidmq.control import history as api
from braidmq.operations.history import NodeHistory
from braidmq.storage.engine.health import Health, HealthState
from braidmq.storage.engine.rocksdb import Disk
from braidmq.storage.log import LogOptions
from braidmq.storage.rows.changes import WriteRefusal
from braidmq.storage.upkeep.backup import restore
from tests.support.recording import Recording, lines_of, recording, records_of


def fail(refusal: WriteRefusal) -> None:
    pytest.fail(refusal.reason)


def with_log(data_dir: Path, talk: Callable[[Recording, NodeHistory], Awaitable[None]], **options: Any) -> None:
    """Let ``talk`` look at a log."""

    async def run() -> None:
        async with recording(data_dir, **options) as node:
            await talk(node, NodeHistory(node))

    asyncio.run(run())


def test_stats_count_what_was_recorded(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        first = await node.append(*((f"c{number}", "t", b"x" * 100) for number in range(20)))

        stats = await operations.stats()

        assert stats.records == sum(shard.records for shard in stats.shards) == 20
        assert stats.size_bytes >= 2000
        assert stats.log_id == node.log.log_id.hex()
        assert min(shard.oldest for shard in stats.shards) == min(first)
        assert max(shard.newest for shard in stats.shards) == max(first)
        assert [shard.generations for shard in stats.shards] == [1, 1, 1]

    with_log(tmp_path, talk)


def test_stats_tell_how_far_named_readers_are_behind(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        stamps = [(await node.append(("c", "t", b"")))[0] for _ in range(3)]
        shard = node.log.shard_of("c")
        saved = asyncio.Event()
        node.log.readers.save("late", {shard: stamps[0]}, pins=True, on_saved=saved.set, on_refused=fail)
        node.log.flush()
        await asyncio.wait_for(saved.wait(), 10)

        [reader] = (await operations.stats()).readers

        assert (reader.name, reader.pins) == ("late", True)
        assert 2 <= reader.records_behind <= 3  # exact to an epoch
        assert reader.lag_s == pytest.approx((stamps[2] - stamps[0]) / 1e6)

    with_log(tmp_path, talk)


def test_a_reader_that_is_forgotten_pins_nothing_any_more(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        saved = asyncio.Event()
        node.log.readers.save("late", {0: 5}, owner="ann", pins=True, on_saved=saved.set, on_refused=fail)
        node.log.flush()
        await asyncio.wait_for(saved.wait(), 10)
        assert [each.user for each in (await operations.stats()).readers] == ["ann"]

        assert await operations.forget("late") is True
        assert await operations.forget("late") is False

        assert (await operations.stats()).readers == []
        assert node.log.readers.pins(0) == []

    with_log(tmp_path, talk)


def test_durability_shows_commits_and_what_waits_for_them(tmp_path: Path) -> None:
    class SlowDisk(Disk):
        """A disk that takes its time on purpose."""

        def __init__(self) -> None:
            self.may_flush = threading.Event()
            self.may_flush.set()

        def flush(self, db: object) -> None:
            self.may_flush.wait(10)
            super().flush(db)  # type: ignore[arg-type]

    async def talk(node: Recording, operations: NodeHistory) -> None:
        [first] = await node.append(("c", "t", b"x" * 1000))
        disk.may_flush.clear()
        waiting = asyncio.create_task(node.append(("c", "t", b"y" * 1000)))
        await asyncio.sleep(0)

        before = await operations.durability()
        disk.may_flush.set()
        [second] = await waiting
        after = await operations.durability()

        shard = node.log.shard_of("c")
        assert (before.mode, before.health) == ("fsync", "ok")
        assert before.commits >= 1
        assert before.pending_bytes >= 1000
        assert before.shards[shard].watermark == first
        assert after.commits == before.commits + 1
        assert after.pending_bytes == 0
        assert after.shards[shard].watermark == second
        assert after.commit_s_total > before.commit_s_total
        assert after.disk_bytes > 0
        assert after.disk_free_bytes > 0

    disk = SlowDisk()
    with_log(tmp_path, talk, options=LogOptions(disk=disk))


def test_durability_says_why_the_log_takes_no_writes(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        node.log_health = Health(HealthState.STOPPED, "the disk is gone", needs_restart=True)

        shown = await operations.durability()

        assert (shown.health, shown.reason, shown.needs_restart) == ("stopped", "the disk is gone", True)

    with_log(tmp_path, talk)


def test_relearning_begins_a_generation_only_if_it_helps(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        nothing = await operations.relearn(api.RelearnRequest())
        # The numbers turn out to vary, but each of the first ten has patterns of its own by then.
        topics = [f"plant/{number}/{what}" for number in range(100) for what in ("temperature", "pressure", "level")]
        await node.append(*(("c", topic, b"before") for topic in topics))
        before = await operations.generations()

        done = await operations.relearn(api.RelearnRequest())
        await node.append(("c", "plant/1/level", b"after"))

        after = await operations.generations()
        assert not nothing.is_begun
        assert done.is_begun
        assert len(after) == len(before) + 1
        assert sum(each.records for each in after) == len(topics) + 1
        records = records_of(await lines_of(operations.read(api.ReadRequest(filters=("plant/1/level",)))))
        assert [record.payload for record in records] == ["before", "after"]

    with_log(tmp_path, talk)


def test_a_backup_under_load_has_everything_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    is_over = False
    many = asyncio.Event()

    async def publish(node: Recording) -> None:
        number = 0
        while not is_over:
            await node.append(*((f"c{each % 7}", "t", b"%d" % each) for each in range(number, number + 50)))
            acknowledged.extend(range(number, number + 50))
            number += 50
            if number >= 2000:
                many.set()

    async def talk(node: Recording, operations: NodeHistory) -> None:
        nonlocal is_over
        load = asyncio.create_task(publish(node))
        await asyncio.wait_for(many.wait(), 10)
        before = len(acknowledged)

        lines = await lines_of(operations.backup(str(tmp_path / "backup")))

        is_over = True
        await load
        assert len(acknowledged) > before, "there was no load meanwhile"
        assert isinstance(lines[-2], api.Made)
        assert lines[-1] == api.End()
        acknowledged[before:] = []

    (tmp_path / "data").mkdir()
    with_log(tmp_path / "data", talk)
    restore(tmp_path / "backup", tmp_path / "new", lambda *_: None)

    async def compare(_: Recording, operations: NodeHistory) -> None:
        records = records_of(await lines_of(operations.read(api.ReadRequest(filters=("#",)))))
        found = [int(record.payload) for record in records]
        assert set(acknowledged) <= set(found)
        assert len(set(found)) == len(found)

    with_log(tmp_path / "new", compare)


def test_a_backup_does_not_stop_the_loop(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        for _ in range(10):
            await node.append(*((f"c{number % 9}", f"t/{number}", bytes(1000)) for number in range(2000)))
        loop = asyncio.get_running_loop()
        longest_s = 0.0

        async def watch() -> None:
            nonlocal longest_s
            while True:
                began = loop.time()
                await asyncio.sleep(0.001)
                longest_s = max(longest_s, loop.time() - began)

        watching = asyncio.create_task(watch())
        await lines_of(operations.backup(str(tmp_path / "backup")))
        watching.cancel()

        # The checkpoint of 20 MB of memtables alone takes longer if it holds the interpreter lock to the end.
        assert longest_s < 0.25

    (tmp_path / "data").mkdir()
    with_log(tmp_path / "data", talk)


def test_only_one_backup_runs_at_a_time_and_a_caller_that_leaves_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    async def talk(node: Recording, operations: NodeHistory) -> None:
        may_go_on, began = threading.Event(), threading.Event()
        checkpoint = node.log.checkpoint

        def slow(path: Path) -> None:
            began.set()
            may_go_on.wait(10)
            checkpoint(path)

        monkeypatch.setattr(node.log, "checkpoint", slow)
        await node.append(("c", "t", b"x"))
        async with aclosing(operations.backup(str(tmp_path / "one"))) as answer:  # type: ignore[type-var]
            assert api.decode_line(await anext(answer)) == api.Copying(done_bytes=0, total_bytes=0)
            assert began.is_set()
            with pytest.raises(Unavailable, match="another backup"):
                operations.backup(str(tmp_path / "two"))
            may_go_on.set()

        assert names() == ["data"]
        await lines_of(operations.backup(str(tmp_path / "two")))
        assert names() == ["data", "two"]

    (tmp_path / "data").mkdir()
    with_log(tmp_path / "data", talk)


@pytest.mark.parametrize("path", ["relative", "{data}/inside", "{data}", "{missing}/x"])
def test_an_invalid_backup_path_is_rejected_at_once(tmp_path: Path, path: str) -> None:
    async def talk(_: Recording, operations: NodeHistory) -> None:
        with pytest.raises(UsageError):
            operations.backup(path.format(data=tmp_path / "data", missing=tmp_path / "nowhere"))

    (tmp_path / "data").mkdir()
    with_log(tmp_path / "data", talk)


def test_patterns_that_are_given_begin_a_generation(tmp_path: Path) -> None:
    async def talk(node: Recording, operations: NodeHistory) -> None:
        await node.append(*((f"c{number}", f"d/{number}/x", b"") for number in range(5)))

        done = await operations.relearn(api.RelearnRequest(patterns=("d/+/x",), thresholds=(9, 3)))
        with pytest.raises(UsageError):
            await operations.relearn(api.RelearnRequest(thresholds=(9, 3)))
        await node.append(*((f"c{number}", f"d/{number}/x", b"") for number in range(5)))

        assert done.is_begun
        assert {pattern for each in await operations.patterns() for pattern in each.patterns} == {"d/+/x"}
        assert {each.number for each in await operations.generations()} == {1, 2}
        assert (await operations.stats()).records == 10

    with_log(tmp_path, talk)
