"""The store as its users see it: batches, reads between bounds, numbers of writes, formats, backups."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Rdict

from braidmq.base.errors import ConfigError, UsageError
from braidmq.storage.engine.identity import FORMAT_VERSION
from braidmq.storage.engine.store import Cursor, Store

FAMILY = "shard-00"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "log", [FAMILY, "shard-01"]) as opened:
        yield opened


def put(store: Store, *keys: bytes, family: str = FAMILY) -> int:
    batch = store.batch()
    for key in keys:
        batch.put(family, key, b"value of " + key)
    return store.write(batch)


def walk(cursor: Cursor) -> list[bytes]:
    found = []
    while cursor.valid:
        found.append(cursor.key())
        cursor.next()
    return found


def test_a_new_directory_can_be_entered_by_its_owner_only(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data" / "log", [FAMILY]) as store:
        assert stat.S_IMODE(store.path.stat().st_mode) == 0o700


def test_a_batch_is_written_to_all_its_families(store: Store) -> None:
    batch = store.batch()
    batch.put(FAMILY, b"a", b"1")
    batch.put_all("shard-01", [(b"b", b"2"), (b"c", b"3")])

    assert len(batch) == 3
    assert batch.size_bytes > 6
    store.write(batch)

    assert store.get(FAMILY, b"a") == b"1"
    assert store.get("shard-01", b"a") is None
    assert list(store.items("shard-01", b"", b"\xff")) == [(b"b", b"2"), (b"c", b"3")]


def test_changes_of_a_batch_are_applied_in_order(store: Store) -> None:
    put(store, b"a", b"b", b"c", b"d")

    batch = store.batch()
    batch.delete_range(FAMILY, b"b", b"d")
    batch.put(FAMILY, b"c", b"back")
    batch.delete(FAMILY, b"a")
    store.write(batch)

    assert [key for key, _ in store.items(FAMILY, b"", b"\xff")] == [b"c", b"d"]
    assert store.get(FAMILY, b"c") == b"back"


def test_a_batch_can_be_written_only_once(store: Store) -> None:
    batch = store.batch()
    batch.put(FAMILY, b"a", b"1")
    store.write(batch)

    with pytest.raises(UsageError, match="already been written"):
        store.write(batch)
    with pytest.raises(UsageError, match="already been written"):
        batch.put(FAMILY, b"b", b"2")


@pytest.mark.parametrize(
    ("key", "value"), [(bytearray(b"k"), b"v"), (memoryview(b"k"), b"v"), (b"k", bytearray(b"v")), ("k", b"v")]
)
def test_values_other_than_bytes_are_rejected_with_a_clear_message(store: Store, key: bytes, value: bytes) -> None:
    with pytest.raises(UsageError, match="must be bytes"):
        store.batch().put(FAMILY, key, value)
    with pytest.raises(UsageError, match="must be bytes"):
        store.batch().put_all(FAMILY, [(key, value)])


def test_an_unknown_family_is_rejected_with_a_clear_message(store: Store) -> None:
    for call in (
        lambda: store.batch().put("shard-99", b"k", b"v"),
        lambda: store.batch().delete("shard-99", b"k"),
        lambda: store.batch().delete_range("shard-99", b"a", b"b"),
        lambda: store.get("shard-99", b"k"),
        lambda: store.cursor("shard-99", b"", b"k"),
        lambda: list(store.items("shard-99", b"", b"k")),
    ):
        with pytest.raises(UsageError, match="no family 'shard-99'"):
            call()


def test_a_cursor_stays_between_its_bounds(store: Store) -> None:
    """rocksdict's own lower bound sets the upper one; with both set it returns the wrong rows."""
    put(store, *(b"k%d" % digit for digit in range(10)))
    cursor = store.cursor(FAMILY, b"k3", b"k6")

    cursor.seek(b"")
    from_below = walk(cursor)
    cursor.seek(b"k5")
    from_within = walk(cursor)
    cursor.seek(b"k7")

    assert from_below == [b"k3", b"k4", b"k5"]
    assert from_within == [b"k5"]
    assert not cursor.valid


def test_a_cursor_that_has_ended_or_has_not_begun_may_be_stepped(store: Store) -> None:
    """Bare rocksdict takes the process down with it."""
    put(store, b"a")
    cursor = store.cursor(FAMILY, b"", b"\xff")

    cursor.next()
    assert not cursor.valid
    cursor.seek(b"a")
    assert (cursor.key(), cursor.value()) == (b"a", b"value of a")
    cursor.next()
    cursor.next()
    assert not cursor.valid


def test_a_cursor_does_not_see_what_is_written_after_it_was_made(store: Store) -> None:
    put(store, b"a", b"c")
    cursor = store.cursor(FAMILY, b"", b"\xff")
    put(store, b"b")

    cursor.seek(b"")

    assert walk(cursor) == [b"a", b"c"]


keys = st.binary(min_size=1, max_size=3)


@given(rows=st.sets(keys, max_size=20), lower=keys, upper=keys, start=keys)
def test_cursor_and_items_agree_with_a_sorted_list(
    tmp_path_factory: pytest.TempPathFactory, rows: set[bytes], lower: bytes, upper: bytes, start: bytes
) -> None:
    store = shared_store(tmp_path_factory)
    clear = store.batch()
    clear.delete_range(FAMILY, b"", b"\xff" * 4)
    store.write(clear)
    put(store, *rows)
    cursor = store.cursor(FAMILY, lower, upper)
    cursor.seek(start)

    inside = sorted(key for key in rows if lower <= key < upper)

    assert [key for key, _ in store.items(FAMILY, lower, upper)] == inside
    assert walk(cursor) == [key for key in inside if key >= start]


_shared: list[Store] = []


def shared_store(factory: pytest.TempPathFactory) -> Store:
    """One store for all examples of a property: opening one for each would take most of the time."""
    if not _shared:
        _shared.append(Store.open(factory.mktemp("shared") / "log", [FAMILY]))
    return _shared[0]


@pytest.fixture(scope="module", autouse=True)
def _close_shared() -> Iterator[None]:
    yield
    for store in _shared:
        store.close()


def test_items_covers_rows_in_tables_and_in_memory(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        put(store, b"a", b"c")
        store.compact(FAMILY, b"", b"\xff")
        put(store, b"b", b"d")

        assert [key for key, _ in store.items(FAMILY, b"a", b"d")] == [b"a", b"b", b"c"]


def test_writes_are_numbered_from_one_and_committed_by_sync(store: Store) -> None:
    assert (store.written, store.committed) == (0, 0)

    assert [put(store, b"a"), put(store, b"b"), put(store, b"c")] == [1, 2, 3]
    assert (store.written, store.committed) == (3, 0)

    assert store.sync() == 3
    assert store.committed == 3


def test_with_durability_os_a_write_is_committed_at_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY], durability="os") as store:
        assert put(store, b"a") == store.committed == 1


def test_with_durability_os_commits_of_one_turn_are_reported_together(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY], durability="os") as store:
        calls: list[Callable[[], None]] = []
        told: list[int] = []
        store.start(calls.append, told.append)

        put(store, b"a")
        put(store, b"b")
        assert len(calls) == 1
        calls.pop()()
        put(store, b"c")
        calls.pop()()

        assert told == [2, 3]


def test_rows_and_log_id_survive_reopening(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        put(store, b"a")
        log_id = store.log_id

    with Store.open(tmp_path / "log", [FAMILY]) as store:
        assert store.get(FAMILY, b"a") == b"value of a"
        assert store.log_id == log_id
        assert len(log_id) == 16


def test_two_logs_have_two_ids(tmp_path: Path) -> None:
    with Store.open(tmp_path / "one", []) as one, Store.open(tmp_path / "two", []) as two:
        assert one.log_id != two.log_id


def test_a_family_can_be_added_later_and_an_unnamed_one_is_kept(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        put(store, b"a")

    with Store.open(tmp_path / "log", ["class-long"]) as store:
        assert set(store.families) == {"default", FAMILY, "class-long"}
        assert store.get(FAMILY, b"a") == b"value of a"
        put(store, b"b", family="class-long")

    with Store.open(tmp_path / "log", []) as store:
        assert store.get("class-long", b"b") == b"value of b"


def test_the_rows_about_the_database_have_the_bytes_of_format_1(store: Store) -> None:
    assert FORMAT_VERSION == 1
    assert list(store.items("default", b"", b"\xff")) == [(b"format", b"\x00\x00\x00\x01"), (b"log-id", store.log_id)]


def test_a_newer_format_is_rejected_and_not_changed(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        batch = store.batch()
        batch.put("default", b"format", b"\x00\x00\x00\x02")
        store.write(batch)

    with pytest.raises(UsageError, match="has format 2, but this version of braidmq supports formats up to 1"):
        Store.open(tmp_path / "log", [FAMILY, "shard-01"])

    assert Rdict.list_cf(str(tmp_path / "log")) == ["default", FAMILY]


def test_a_checkpoint_is_a_store_of_that_moment(store: Store, tmp_path: Path) -> None:
    put(store, b"a")
    store.checkpoint(tmp_path / "backups" / "monday")
    put(store, b"b")

    with Store.open(tmp_path / "backups" / "monday", [FAMILY]) as copy:
        assert [key for key, _ in copy.items(FAMILY, b"", b"\xff")] == [b"a"]
        assert copy.log_id == store.log_id
        assert stat.S_IMODE(copy.path.stat().st_mode) == 0o700


def test_a_checkpoint_is_not_written_into_an_existing_directory(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already exists"):
        store.checkpoint(tmp_path)


def test_a_closed_store_rejects_calls_and_can_be_closed_again(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "log", [FAMILY])
    batch = store.batch()
    store.close()
    store.close()

    with pytest.raises(UsageError, match="is closed"):
        store.write(batch)
    with pytest.raises(UsageError, match="no family"):
        store.get(FAMILY, b"a")
    Store.open(tmp_path / "log", [FAMILY]).close()


def test_compacting_a_range_that_was_removed_frees_its_space(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [FAMILY]) as store:
        rows = store.batch()
        rows.put_all(FAMILY, [(b"%06d" % number, number.to_bytes(4, "big") * 25) for number in range(20_000)])
        store.write(rows)
        store.compact(FAMILY, b"", b"\xff")
        before = store.stats()["table_bytes"]

        removal = store.batch()
        removal.delete_range(FAMILY, b"", b"019000")
        store.write(removal)
        store.compact(FAMILY, b"", b"\xff")

        assert store.stats()["table_bytes"] < before / 5
        assert sum(1 for _ in store.items(FAMILY, b"", b"\xff")) == 1000


def test_a_log_gets_the_id_that_it_must_have_and_no_other(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", [], log_id=b"i" * 16) as store:
        assert store.log_id == b"i" * 16

    with Store.open(tmp_path / "log", [], log_id=b"i" * 16) as store:
        assert store.log_id == b"i" * 16
    with pytest.raises(ConfigError, match="belongs to another cluster"):
        Store.open(tmp_path / "log", [], log_id=b"j" * 16)
