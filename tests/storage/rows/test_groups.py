"""Rows of shared groups: the released bytes, and what is read back of them."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base.errors import Corruption, UsageError
from braidmq.broker.ports import GroupRow
from braidmq.storage.format.group_rows import decode_group, encode_group, group_key
from braidmq.storage.rows.changes import Put
from braidmq.storage.rows.groups import LogGroups
from tests.storage.golden import golden
from tests.storage.kept import put
from tests.storage.message_log import Stage
from tests.storage.session_values import positions, texts

EPOCH = 1_700_000_000_000_000
GROUP = GroupRow("g", "a/#", (EPOCH, 1), ((1, EPOCH + 258),))
LOOKING_BACK = GroupRow("g", "a/#", (7,), (), (EPOCH,))

# Names and filters that end and begin alike.
NAMES = ("g", "ga", "g\x01", "\U0010ffff")
FILTERS = ("#", "a", "a/#", "\x01")

places = st.lists(positions, max_size=4).map(tuple)
outstanding = st.lists(st.tuples(st.integers(0, 4095), positions), max_size=8).map(tuple)


def test_rows_of_groups_are_the_released_bytes_and_are_read() -> None:
    stored = golden("groups")

    assert {
        "group-key": group_key("g", "a/#"),
        "group-row": encode_group(GROUP),
        "group-row-since": encode_group(LOOKING_BACK),
    } == stored
    assert decode_group(stored["group-key"], stored["group-row"]) == GROUP
    assert decode_group(stored["group-key"], stored["group-row-since"]) == LOOKING_BACK


def with_since(row: GroupRow) -> GroupRow:
    return GroupRow(row.name, row.topic_filter, row.positions, row.outstanding, row.positions)


rows = st.builds(GroupRow, texts, texts, places, outstanding)


@given(rows | rows.map(with_since))
def test_a_group_is_read_back_as_it_was(row: GroupRow) -> None:
    assert decode_group(group_key(row.name, row.topic_filter), encode_group(row)) == row


def test_a_newer_row_of_a_group_is_rejected_with_a_clear_message() -> None:
    stored = golden("groups")

    for value in (b"\x02" + stored["group-row"][1:], b"\x02"):
        with pytest.raises(UsageError, match="the group 'g' has the format 2, newer than 1"):
            decode_group(stored["group-key"], value)


def test_a_broken_row_of_a_group_is_corruption_that_names_it() -> None:
    stored = golden("groups")
    key, whole = stored["group-key"], stored["group-row"]
    broken = [(key, whole[:size]) for size in range(len(whole))]
    broken += [(key, whole + b"\0"), (key, whole + whole[-10:]), (key, b"\0" + whole[1:]), (key[:2], whole)]
    since = stored["group-row-since"]
    broken += [(key, since[:size]) for size in range(len(since)) if size != len(since) - 8] + [(key, since + since[-8:])]

    for row in (*broken, (key + b"\xff", whole)):
        with pytest.raises(Corruption, match="the group 'g'"):
            decode_group(*row)


@pytest.mark.parametrize(
    "row",
    [
        GroupRow("g\0", "a", (), ()),
        GroupRow("g", "\0a", (), ()),
        GroupRow("g", "a", (-1,), ()),
        GroupRow("g", "a", (), ((65_536, 1),)),
        GroupRow("g", "a", (1, 1), (), (1,)),
        GroupRow("g", "a", (1,), (), (-1,)),
    ],
    ids=["name", "filter", "position", "shard", "other shards", "since"],
)
def test_a_group_that_could_not_be_read_back_is_not_written(tmp_path: Path, row: GroupRow) -> None:
    with Stage(tmp_path) as stage, pytest.raises(UsageError):
        LogGroups(stage.log).put(row)


def test_a_group_is_in_the_shard_of_its_name_and_filter(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=3) as stage:
        groups = LogGroups(stage.log)
        for name in NAMES:
            for topic_filter in FILTERS:
                shard = zlib.crc32(f"{name}\0{topic_filter}".encode()) % 3
                assert groups.put(GroupRow(name, topic_filter, (), ())).shard == shard
                assert groups.remove(name, topic_filter).shard == shard


def test_the_groups_of_one_of_several_cores_are_in_its_own_shards(tmp_path: Path) -> None:
    with Stage(tmp_path, shards=5) as stage:
        groups = LogGroups(stage.log, [4, 1])
        shards = {groups.put(GroupRow(name, topic_filter, (), ())).shard for name in NAMES for topic_filter in FILTERS}

        assert shards == {1, 4}
        change = groups.put(GROUP)
        assert change.shard == groups.remove("g", "a/#").shard
        put(stage, change)
        assert groups.load_one("g", "a/#") == GROUP


def test_a_store_with_a_newer_group_is_not_loaded(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        groups = LogGroups(stage.log)
        change = groups.put(GROUP)
        put(stage, Put(change.shard, change.key, b"\x02" + change.value[1:]))

        with pytest.raises(UsageError, match="newer"):
            list(groups.load())


steps = st.lists(
    st.builds(GroupRow, st.sampled_from(NAMES), st.sampled_from(FILTERS), places, outstanding)
    | st.tuples(st.sampled_from(NAMES), st.sampled_from(FILTERS)),
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_groups_that_are_loaded_are_those_put_and_not_removed(history: list[GroupRow | tuple[str, str]]) -> None:
    model: dict[tuple[str, str], GroupRow] = {}

    def check(groups: LogGroups) -> None:
        found = list(groups.load())
        assert len(found) == len(model)
        assert {(row.name, row.topic_filter): row for row in found} == model

    with tempfile.TemporaryDirectory() as folder:
        with Stage(Path(folder), durability="os") as stage:
            groups = LogGroups(stage.log)
            for step in history:
                if isinstance(step, GroupRow):
                    put(stage, groups.put(step))
                    model[step.name, step.topic_filter] = step
                else:
                    put(stage, groups.remove(*step))
                    model.pop(step, None)
            check(groups)

        with Stage(Path(folder), durability="os") as stage:
            check(LogGroups(stage.log))
