"""Rows of delayed messages: each in its publisher's shard, all in order of when they are due."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.path.message import Message
from braidmq.storage.format import kept_messages
from braidmq.storage.rows.changes import Put
from braidmq.storage.rows.delayed import LogDelayed
from tests.storage.kept import Clocks, Fields, fields_of, make_message, messages, put, user_names
from tests.storage.message_log import Stage, clients_of

NOON = 1_700_000_000.0


def test_a_delayed_message_is_in_its_publishers_home_shard(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        delayed = LogDelayed(stage.log)
        for shard in range(stage.log.shards):
            publisher = clients_of(stage.log, shard)[0]
            row_id, change = delayed.put(make_message(publisher=publisher), None, NOON)
            assert (change.shard, change.key) == (shard, row_id)
            assert (delayed.remove(publisher, row_id).shard, delayed.remove(publisher, row_id).key) == (shard, row_id)


def test_messages_are_loaded_in_order_of_when_they_are_due_across_shards(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        delayed = LogDelayed(stage.log)
        publishers = [clients_of(stage.log, shard)[0] for shard in range(3)]
        dues = [NOON + (number * 7) % 10 for number in range(10)]
        for number, due in enumerate(dues):
            put(stage, delayed.put(make_message(publisher=publishers[number % 3]), None, due)[1])

        assert [each.due for each in delayed.load()] == sorted(dues)


def test_messages_that_are_due_together_stay_in_order_over_a_restart(tmp_path: Path) -> None:
    clocks = Clocks()
    payloads = [b"%d" % number for number in range(20)]
    for half in (payloads[:10], payloads[10:]):
        with Stage(tmp_path, shards=1) as stage:
            delayed = LogDelayed(stage.log, wall=clocks.wall, now=clocks.now)
            put(stage, *(delayed.put(make_message(payload=each), None, NOON + 60)[1] for each in half))
        clocks.reboot(0.001, 5.0)

    with Stage(tmp_path, shards=1) as stage:
        assert [each.message.payload for each in LogDelayed(stage.log).load()] == payloads


def test_a_clock_that_stands_still_over_a_restart_overwrites_no_row(tmp_path: Path) -> None:
    clocks = Clocks()
    with Stage(tmp_path) as stage:
        ids = {LogDelayed(stage.log, wall=clocks.wall, now=clocks.now).put(make_message(), None, NOON)[0] for _ in range(20)}

    # Each start draws twelve random bits: twenty draws of 4096 seldom meet, and never so often.
    assert len(ids) > 10


def test_a_delayed_message_is_read_by_its_row_or_reported_missing(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        delayed = LogDelayed(stage.log)
        row_id, change = delayed.put(make_message(payload=b"later"), "bob", NOON)
        home = stage.log.shard_of("p")
        assert delayed.read(home, row_id) is None
        put(stage, change)

        found = delayed.read(home, row_id)
        put(stage, delayed.remove("p", row_id))

        assert found is not None
        assert (found.message.payload, found.user_name, found.due, found.row_id) == (b"later", "bob", NOON, row_id)
        assert delayed.read(home, row_id) is None


@given(st.floats(0, 1e10))
def test_a_message_is_never_early_and_less_than_two_milliseconds_late(due: float) -> None:
    with_id = kept_messages.delayed_due_ms(LogDelayed(NoLog()).put(make_message(), None, due)[0]) / 1000  # type: ignore[arg-type]

    assert due - 1e-6 <= with_id < due + 0.002


class NoLog:
    """Stands in for a log where only the home of a client is asked for."""

    shards = 1

    def shard_of(self, client_id: str) -> int:
        return 0


def test_a_time_before_1970_is_refused(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage, pytest.raises(UsageError, match="cannot be delayed"):
        LogDelayed(stage.log).put(make_message(), None, -1.0)


def test_an_expiry_is_kept_beside_the_delay(tmp_path: Path) -> None:
    clocks = Clocks()
    with Stage(tmp_path) as stage:
        delayed = LogDelayed(stage.log, wall=clocks.wall, now=clocks.now)
        put(stage, delayed.put(make_message(expires_at=clocks.now() + 90), "u", clocks.wall() + 60)[1])
    clocks.reboot(30.0, 5.0)

    with Stage(tmp_path) as stage:
        (stored,) = LogDelayed(stage.log, wall=clocks.wall, now=clocks.now).load()
        assert stored.due == clocks.wall() + 30
        assert stored.message.expires_at == pytest.approx(clocks.now() + 60)


@pytest.mark.parametrize(("version", "error"), [(2, UsageError), (0, Corruption)])
def test_a_delayed_message_that_cannot_be_loaded_is_named(tmp_path: Path, version: int, error: type[Exception]) -> None:
    with Stage(tmp_path) as stage:
        delayed = LogDelayed(stage.log)
        row_id, change = delayed.put(make_message(), None, NOON)
        put(stage, Put(change.shard, change.key, bytes((version,)) + change.value[1:]))

        with pytest.raises(error, match=f"the delayed message {row_id.hex()} cannot be read"):
            list(delayed.load())


def test_a_key_of_another_length_is_corruption(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        delayed = LogDelayed(stage.log)
        row_id, change = delayed.put(make_message(), None, NOON)
        put(stage, msgspec.structs.replace(change, key=row_id + b"\0"))

        with pytest.raises(Corruption, match="18 bytes, not 17"):
            list(delayed.load())


Step = tuple[Message, str | None, int] | int
steps = st.lists(st.tuples(messages(), user_names, st.integers(0, 3)) | st.integers(0, 10), max_size=30)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_loading_returns_what_was_put_and_not_removed(history: list[Step]) -> None:
    model: dict[bytes, tuple[Fields, str | None, float]] = {}
    publishers: dict[bytes, str] = {}

    def check(delayed: LogDelayed) -> None:
        found = list(delayed.load())
        assert {each.row_id: (fields_of(each.message), each.user_name, each.due) for each in found} == model
        assert [each.row_id for each in found] == sorted(model)

    with tempfile.TemporaryDirectory() as folder:
        with Stage(Path(folder), durability="os") as stage:
            delayed = LogDelayed(stage.log)
            for step in history:
                if isinstance(step, tuple):
                    message, user_name, seconds = step
                    row_id, change = delayed.put(message, user_name, NOON + seconds)
                    put(stage, change)
                    model[row_id] = (fields_of(message), user_name, NOON + seconds)
                    publishers[row_id] = message.publisher
                elif model:
                    gone = sorted(model)[step % len(model)]
                    put(stage, delayed.remove(publishers[gone], gone))
                    del model[gone]
            check(delayed)

        with Stage(Path(folder), durability="os") as stage:
            check(LogDelayed(stage.log))
