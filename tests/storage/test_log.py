"""Appending to the log of a node: who is told what and when, what is refused, and what is found after opening again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from braidmq.base.config.settings import HistorySettings
from braidmq.base.errors import ConfigError, UsageError
from braidmq.base.units import Seconds
from braidmq.lane.path.ports import Change
from braidmq.storage.engine.rocksdb import DEFAULT_FAMILY
from braidmq.storage.engine.store import Store
from braidmq.storage.log import DurableLog, LogOptions
from braidmq.storage.rows.changes import Delete, Put
from tests.storage.message_log import DEADLINE_S, BrokenDisk, Stage, clients_of, unexpected
from tests.support.appending import append


def test_no_append_is_acknowledged_before_its_commit(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.append("a", "t", b"1")
        stage.log.flush()

        assert stage.acks == []
        assert stage.log.watermarks[stage.log.shard_of("a")] == 0
        assert stage.payloads("#") == []

        stage.settle()
        assert [payload for payload, _, _ in stage.acks] == [b"1"]
        assert stage.payloads("#") == [b"1"]


def test_a_commit_is_known_before_its_appenders_are_told(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        known = [stage.log.has_commit]
        stage.append("a", "t", b"1")
        stage.log.flush()
        tell = stage.calls.get(timeout=DEADLINE_S)  # what the commit thread asks the loop to call
        known.append(stage.log.has_commit)
        tell()
        known.append(stage.log.has_commit)

        assert known == [False, True, False]


def test_appends_are_acknowledged_in_order_with_their_place(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for number in range(60):
            stage.append(f"client-{number % 7}", "t", b"%d" % number)
            if number % 10 == 0:
                stage.log.flush()
        stage.settle()

        assert [payload for payload, _, _ in stage.acks] == [b"%d" % number for number in range(60)]
        assert {(shard, record.timestamp, record.payload) for shard, record in stage.read("#")} == {
            (shard, timestamp, payload) for payload, shard, timestamp in stage.acks
        }
        assert all(shard == stage.log.shard_of(f"client-{int(payload) % 7}") for payload, shard, _ in stage.acks)


def test_one_flush_is_one_write_for_all_shards(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        before = stage.log.stats().store["written"]
        for shard in range(3):
            stage.append(clients_of(stage.log, shard)[0], "t", b"x")
        stage.settle()

        assert stage.log.stats().store["written"] == before + 1
        assert {shard for _, shard, _ in stage.acks} == {0, 1, 2}


def test_the_home_of_a_client_is_fixed_by_the_format(tmp_path: Path) -> None:
    # 0xCBF43926 is the check value of CRC-32 for "123456789".
    with Stage(tmp_path, shards=7) as stage:
        assert stage.log.shard_of("123456789") == 0xCBF43926 % 7
        assert stage.log.shard_of("") == 0


def test_records_and_identity_survive_reopening(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for number in range(20):
            stage.append(f"c{number}", f"t/{number}", b"%d" % number)
        stage.settle()
        before = stage.read("#")
        log_id = stage.log.log_id
        marks = stage.log.watermarks

    with Stage(tmp_path) as stage:
        assert stage.log.log_id == log_id
        assert stage.log.watermarks == marks
        assert [(shard, record.timestamp, record.value) for shard, record in stage.read("#")] == [
            (shard, record.timestamp, record.value) for shard, record in before
        ]


def test_another_number_of_shards_is_rejected_and_creates_nothing(tmp_path: Path) -> None:
    Stage(tmp_path, shards=3).log.close()

    with pytest.raises(ConfigError, match=r"history\.shards: is 5, .* has 3; set it to 3"):
        DurableLog.open(tmp_path, HistorySettings(shards=5))

    with Store.open(tmp_path / "log", ()) as store:
        assert sorted(store.families) == [DEFAULT_FAMILY, "shard-00", "shard-01", "shard-02"]


def test_an_interrupted_creation_of_a_log_is_completed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", ()) as store:
        batch = store.batch()
        batch.put(DEFAULT_FAMILY, b"shards", (3).to_bytes(4, "big"))
        store.write(batch)
        store.sync()

    with Stage(tmp_path, shards=3) as stage:
        stage.publish("a", "t", b"1")
        assert stage.payloads("#") == [b"1"]


def test_an_invalid_size_is_rejected_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"history\.retention_bytes"):
        DurableLog.open(tmp_path, HistorySettings(retention_bytes="a lot", retention=Seconds(1)))


def test_another_layout_begins_a_generation_and_old_records_stay(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=1, layout="learned") as stage:
        stage.publish("a", "t/1", b"1")
    with Stage(tmp_path, shards=1, layout="hashed") as stage:
        stage.publish("a", "t/2", b"2")

        assert stage.payloads("t/+") == [b"1", b"2"]
        assert [each.layout for each in stage.log.stats().shards[0].generations] == ["learned", "hashed"]
    with Stage(tmp_path, shards=1, layout="hashed") as stage:
        assert len(stage.log.stats().shards[0].generations) == 2
        assert stage.payloads("t/+") == [b"1", b"2"]


def test_a_new_generation_is_read_across(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for number in range(30):
            stage.append(f"c{number}", f"t/{number}", b"%d" % number)
        stage.log.add_generation("learned")
        for number in range(30, 60):
            stage.append(f"c{number}", f"t/{number}", b"%d" % number)
        stage.settle()

        assert sorted(map(int, stage.payloads("t/+"))) == list(range(60))


def test_rows_are_written_with_the_record_or_not_at_all(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        home = stage.log.shard_of("a")
        other = (home + 1) % 3
        stage.append("a", "t", b"1", changes=[Put(home, b"\xeaid-7", b"held"), Put(other, b"\xebretained", b"1")])
        stage.settle()
        assert stage.log.row(home, b"\xeaid-7") == b"held"
        assert stage.log.row(other, b"\xebretained") == b"1"

        disk.is_full = True
        stage.log.check()
        stage.append("a", "t", b"2", changes=[Delete(home, b"\xeaid-7")])
        stage.settle()

        assert [payload for payload, _ in stage.refusals] == [b"2"]
        assert stage.log.row(home, b"\xeaid-7") == b"held"
        assert stage.payloads("#") == [b"1"]


def test_rows_without_records_are_acknowledged_in_order(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        told: list[str] = []
        stage.log.change(
            [Put(0, b"\xe9%d" % n, b"v") for n in range(3)], on_commit=lambda: told.append("put"), on_refused=unexpected
        )
        stage.log.change(
            [Delete(0, b"\xe9%d" % n) for n in range(2)], on_commit=lambda: told.append("delete"), on_refused=unexpected
        )
        stage.settle()

        assert told == ["put", "delete"]
        assert list(stage.log.rows(0, b"\xe9", b"\xea")) == [(b"\xe92", b"v")]


@pytest.mark.parametrize(
    "change",
    [
        Put(0, b"\x00", b""),
        Put(0, b"\xe0", b""),
        Delete(0, b"\xe7\xff"),
        Put(0, b"\xf0", b""),
        Put(3, b"\xe9", b""),
        Delete(0, b"\xff"),
    ],
)
def test_rows_of_the_log_itself_cannot_be_changed(tmp_path: Path, change: Put | Delete) -> None:
    with Stage(tmp_path) as stage:
        with pytest.raises(UsageError):
            stage.append("a", "t", b"1", changes=[change])

        assert stage.log.pending_bytes == 0


def test_a_change_of_another_store_is_rejected_as_a_whole(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        with pytest.raises(UsageError, match="not a change that the log can make"):
            stage.append("a", "t", b"1", changes=[Change()])

        assert stage.log.pending_bytes == 0


def test_a_full_disk_rejects_appends_until_there_is_space(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        disk.is_full = True
        stage.log.check()
        stage.append("a", "t", b"1")
        stage.settle()
        disk.is_full = False
        stage.log.check()
        stage.publish("a", "t", b"2")

        assert [(payload, refusal.is_in_doubt) for payload, refusal in stage.refusals] == [(b"1", False)]
        assert "MiB left" in stage.refusals[0][1].reason
        assert stage.payloads("#") == [b"2"]
        assert stage.log.stats().refused == 1


def test_appends_of_a_failed_commit_are_in_doubt_and_not_shown(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        stage.publish("a", "t", b"1")
        disk.is_broken = True
        stage.append("a", "t", b"2")
        stage.log.flush()
        while not stage.log.check().needs_restart:
            pass

        assert [payload for payload, _, _ in stage.acks] == [b"1"]
        assert [(payload, refusal.is_in_doubt) for payload, refusal in stage.refusals] == [(b"2", True)]
        assert stage.payloads("#") == [b"1"]
        assert stage.log.pending_bytes == 0


def test_appends_committed_before_a_failure_are_not_in_doubt(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        stage.append("a", "t", b"1")
        stage.log.flush()
        late_call = stage.calls.get(timeout=DEADLINE_S)
        disk.is_broken = True
        stage.append("a", "t", b"2")
        stage.log.flush()
        while not stage.log.check().needs_restart:
            pass
        late_call()

        assert [payload for payload, _, _ in stage.acks] == [b"1"]
        assert [payload for payload, _ in stage.refusals] == [b"2"]
        assert stage.payloads("#") == [b"1"]


def test_closing_writes_and_acknowledges_pending_appends(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.append("a", "t", b"1")

    stage.log.close()

    assert [payload for payload, _, _ in stage.acks] == [b"1"]
    with Stage(tmp_path) as again:
        assert again.payloads("#") == [b"1"]


def test_pending_appends_are_bounded_and_publishers_wait_before_the_bound(tmp_path: Path) -> None:
    with Stage(tmp_path, options=LogOptions(pending_bytes_max=100_000)) as stage:
        relieved: list[bool] = []
        stage.log.on_relief(lambda: relieved.append(stage.log.is_congested))
        held_after = refused_after = 0
        for number in range(1, 200):
            stage.append("a", "t", bytes(1000))
            if stage.log.is_congested and not held_after:
                held_after = number
            if stage.refusals and not refused_after:
                refused_after = number

        assert 0 < held_after <= 50
        assert held_after * 1.5 < refused_after <= 101
        assert stage.log.pending_bytes < 102_000
        assert relieved == []

        stage.settle()
        assert relieved == [False]
        assert len(stage.acks) == refused_after - 1


def test_a_record_larger_than_the_bound_passes_when_nothing_waits(tmp_path: Path) -> None:
    with Stage(tmp_path, options=LogOptions(pending_bytes_max=1000)) as stage:
        stage.publish("a", "t", bytes(5000))

        assert len(stage.acks) == 1


def test_a_failing_callback_does_not_affect_other_acknowledgements(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(shard: int, timestamp: int) -> None:
        raise RuntimeError("the waiter's own fault")

    with Stage(tmp_path) as stage:
        append(stage.log, "a", b"t", b"1", on_commit=fail, on_refused=unexpected)
        stage.append("a", "t", b"2")
        with caplog.at_level(logging.ERROR):
            stage.settle()

        assert [payload for payload, _, _ in stage.acks] == [b"2"]
        assert "the waiter's own fault" in caplog.text


def test_durability_os_acknowledges_what_is_written(tmp_path: Path) -> None:
    with Stage(tmp_path, durability="os") as stage:
        stage.publish("a", "t", b"1")

        assert [payload for payload, _, _ in stage.acks] == [b"1"]
        assert stage.payloads("#") == [b"1"]


def test_stats_add_up(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for number in range(12):
            stage.append(f"c{number}", "t", b"12345")
        stage.settle()
        stats = stage.log.stats()
        stamps: dict[int, list[int]] = {shard: [] for shard in range(3)}
        for _, shard, timestamp in stage.acks:
            stamps[shard].append(timestamp)

        assert stats.records == 12
        assert stats.size_bytes == sum(shard.size_bytes for shard in stats.shards)
        assert {each.shard: each.records for each in stats.shards} == {shard: len(each) for shard, each in stamps.items()}
        assert {each.shard: (each.oldest, each.newest) for each in stats.shards if each.records} == {
            shard: (min(each), max(each)) for shard, each in stamps.items() if each
        }
