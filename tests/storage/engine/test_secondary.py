"""A secondary shows what the primary had written at the last catch-up, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.base.errors import Corruption, Unavailable, UsageError
from braidmq.storage.engine.secondary import Secondary
from braidmq.storage.engine.store import Store


def put(store: Store, **rows: bytes) -> None:
    batch = store.batch()
    for key, value in rows.items():
        batch.put("rows", key.encode(), value)
    store.write(batch)


def test_a_secondary_shows_the_data_of_its_last_catch_up(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", ["rows"]) as store:
        put(store, a=b"1", b=b"2", c=b"3")
        second = Secondary.open(tmp_path / "log", tmp_path / "scratch")
        put(store, b=b"22", d=b"4")

        assert second.log_id == store.log_id
        assert set(second.families) == {"default", "rows"}
        assert [*second.items("rows", b"a", b"z")] == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
        second.catch_up()
        assert [*second.items("rows", b"b", b"d")] == [(b"b", b"22"), (b"c", b"3")]
        assert (second.get("rows", b"d"), second.get("rows", b"e")) == (b"4", None)
        second.close()


def test_an_iterator_shows_the_data_of_the_moment_it_was_opened(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", ["rows"]) as store:
        put(store, a=b"1", b=b"2")
        second = Secondary.open(tmp_path / "log", tmp_path / "scratch")
        run = second.run("rows", b"a", b"z")
        batch = store.batch()
        batch.delete_range("rows", b"a", b"z")
        store.write(batch)
        second.catch_up()

        assert [*run] == [(b"a", b"1"), (b"b", b"2")]
        assert [*second.run("rows", b"a", b"z")] == []
        assert second.first_from("rows", b"a", b"z") is None
        del run
        second.close()


def test_a_cursor_seeks_within_its_bounds(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", ["rows"]) as store:
        put(store, a=b"1", b=b"2", c=b"3")
        second = Secondary.open(tmp_path / "log", tmp_path / "scratch")
        cursor = second.cursor("rows", b"a", b"c")

        cursor.seek(b"aa")

        assert (cursor.key(), cursor.value()) == (b"b", b"2")
        cursor.next()
        assert not cursor.valid
        assert second.first_from("rows", b"bb", b"z") == b"c"
        del cursor
        second.close()


def test_log_files_are_listed_from_the_directory(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", ["rows"]) as store:
        second = Secondary.open(tmp_path / "log", tmp_path / "scratch")
        before = second.log_files()
        put(store, a=b"1")
        for family in store._families.values():
            family.flush(True)

        assert before
        assert all(name.endswith(".log") for name in before)
        assert second.log_files() == {each.name for each in (tmp_path / "log").iterdir() if each.suffix == ".log"}
        assert not before <= second.log_files()
        second.close()


def test_a_secondary_does_not_disturb_or_change_its_primary(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", ["rows"]) as store:
        put(store, a=b"1")

    def contents() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in (tmp_path / "log").iterdir()}

    before = contents()
    second = Secondary.open(tmp_path / "log", tmp_path / "scratch")
    second.catch_up()

    assert contents() == before
    with Store.open(tmp_path / "log", ["rows"]) as store:
        put(store, b=b"2")
        second.catch_up()
        assert second.get("rows", b"b") == b"2"
    second.close()


def test_a_directory_without_a_log_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no log"):
        Secondary.open(tmp_path / "log", tmp_path / "scratch")


def test_a_family_created_later_is_missing_and_fails_the_next_catch_up(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", ["rows"]):
        second = Secondary.open(tmp_path / "log", tmp_path / "scratch")
    with Store.open(tmp_path / "log", ["rows", "more"]) as store:
        batch = store.batch()
        batch.put("more", b"a", b"1")
        store.write(batch)
        store._families["more"].flush(True)

        with pytest.raises(UsageError, match="more"):
            second.get("more", b"a")
        with pytest.raises((Corruption, Unavailable)):
            second.catch_up()
    second.close()


def test_damage_is_reported_and_not_mistaken_for_the_end(tmp_path: Path) -> None:
    with Store.open(tmp_path / "log", ["rows"]) as store:
        put(store, **{f"{number:06}": bytes(1000) for number in range(1000)})
        for family in store._families.values():
            family.flush(True)
    table = max((tmp_path / "log").glob("*.sst"), key=lambda each: each.stat().st_size)
    damaged = bytearray(table.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    table.write_bytes(damaged)
    second = Secondary.open(tmp_path / "log", tmp_path / "scratch")

    with pytest.raises(Corruption):
        [*second.items("rows", b"0", b"9")]
    second.close()
