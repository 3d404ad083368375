"""Named readers: their positions on disk, what counts when, and how far they are behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.base.errors import Corruption, UsageError
from braidmq.storage.log import LogOptions
from braidmq.storage.rows import named_readers
from braidmq.storage.rows.changes import WriteRefusal
from braidmq.storage.rows.named_readers import NAME_BYTES_MAX, Lag, ReaderPlace, decode_place, encode_place
from tests.storage.message_log import BrokenDisk, Stage, clients_of, unexpected


def save(stage: Stage, name: str, positions: dict[int, int], *, pins: bool = True) -> None:
    stage.log.readers.save(name, positions, pins=pins, on_saved=lambda: None, on_refused=unexpected)
    stage.settle()


def test_the_row_of_a_reader_has_fixed_bytes() -> None:
    row = encode_place(ReaderPlace(0x0102030405060708, True, 0x1112131415161718))

    assert row.hex() == "0101" + "0102030405060708" + "1112131415161718"
    assert decode_place(row) == ReaderPlace(0x0102030405060708, True, 0x1112131415161718)


def test_the_row_of_a_reader_with_an_owner_has_fixed_bytes() -> None:
    place = ReaderPlace(1, False, 2, "änn")
    row = encode_place(place)

    assert row.hex() == "0200" + "0000000000000001" + "0000000000000002" + "c3a46e6e"
    assert decode_place(row) == place


def test_the_row_of_a_reader_that_says_what_it_reads_has_fixed_bytes() -> None:
    place = ReaderPlace(1, True, 2, "änn", ("a/#", "b"))
    row = encode_place(place)

    assert row.hex() == "0303" + "0000000000000001" + "0000000000000002" + "0004c3a46e6e" + "612f230062"
    assert decode_place(row) == place
    nobodys = ReaderPlace(1, False, 2, None, ("#",))
    assert encode_place(nobodys).hex() == "0300" + "0000000000000001" + "0000000000000002" + "0000" + "23"
    assert decode_place(encode_place(nobodys)) == nobodys


def test_the_filters_of_a_reader_survive_reopening_unless_they_are_too_long(tmp_path: Path) -> None:
    many = tuple(f"plant/{number}/temperature" for number in range(100))
    with Stage(tmp_path) as stage:
        for name, filters in (("few", ("a/#", "b")), ("many", many), ("unknown", ())):
            stage.log.readers.save(name, {0: 5, 1: 6}, filters=filters, pins=True, on_saved=lambda: None, on_refused=unexpected)
        stage.settle()

    with Stage(tmp_path) as stage:
        readers = stage.log.readers
        assert [readers.filters(name) for name in ("few", "many", "unknown", "nobody")] == [("a/#", "b"), (), (), ()]
        assert readers.positions("many") == {0: 5, 1: 6}
        places = readers.places("few")
        assert places[0].filters is places[1].filters, "kept once for all shards"


def test_a_newer_row_is_refused_and_a_broken_one_is_corruption() -> None:
    row = encode_place(ReaderPlace(1, False, 2))

    with pytest.raises(UsageError, match="newer"):
        decode_place(b"\x04" + row[1:])
    for broken in (
        b"",
        row[:-1],
        row + b"\0",
        b"\0" + row[1:],
        b"\x02" + row[1:-1],
        b"\x02" + row[1:] + b"\xff",
        b"\x03" + row[1:],
        b"\x03" + row[1:] + b"\0\1a",
        b"\x03" + row[1:] + b"\0\0\xff",
    ):
        with pytest.raises(Corruption):
            decode_place(broken)


def test_positions_survive_reopening(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        save(stage, "a", {0: 10, 1: 11, 2: 12})
        save(stage, "ab", {1: 5}, pins=False)
        save(stage, "a", {1: 20})

    with Stage(tmp_path) as stage:
        readers = stage.log.readers
        assert readers.names == ["a", "ab"]
        assert readers.positions("a") == {0: 10, 1: 20, 2: 12}
        assert readers.positions("ab") == {1: 5}
        assert readers.positions("b") == {}
        assert [readers.pins(shard) for shard in range(3)] == [[10], [20], [12]]


def test_a_position_counts_once_it_is_on_disk(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        saved: list[str] = []
        stage.log.readers.save("a", {0: 10}, pins=True, on_saved=lambda: saved.append("a"), on_refused=unexpected)
        stage.log.flush()
        assert stage.log.readers.positions("a") == {}
        assert saved == []

        stage.settle()
        assert stage.log.readers.positions("a") == {0: 10}
        assert saved == ["a"]


def test_a_refused_position_leaves_the_old_one(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        save(stage, "a", {0: 10})
        disk.is_full = True
        stage.log.check()
        refused: list[WriteRefusal] = []
        stage.log.readers.save("a", {0: 20}, pins=True, on_saved=pytest.fail, on_refused=refused.append)
        stage.settle()

        assert len(refused) == 1
        assert stage.log.readers.positions("a") == {0: 10}
        assert stage.log.readers.pins(0) == [10]


def test_a_rejected_reader_does_not_count_and_a_rejected_takeover_keeps_its_owner(tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(tmp_path, options=LogOptions(disk=disk)) as stage:
        readers = stage.log.readers
        save(stage, "a", {0: 10})
        disk.is_full = True
        stage.log.check()
        refused: list[WriteRefusal] = []
        for name in ("a", "b"):
            readers.save(name, {0: 20}, owner="ann", pins=True, on_saved=pytest.fail, on_refused=refused.append)
        stage.settle()

        assert len(refused) == 2
        assert (readers.owned("ann"), readers.owned(None)) == (0, 1)
        assert readers.is_owned_by("a", None)


def test_a_dropped_reader_is_gone_in_all_shards_and_its_namesakes_stay(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        save(stage, "a", {0: 10, 1: 11, 2: 12})
        save(stage, "ab", {0: 5})
        stage.log.readers.drop("a", on_dropped=lambda: None, on_refused=unexpected)
        stage.settle()
        assert stage.log.readers.names == ["ab"]

    with Stage(tmp_path) as stage:
        assert stage.log.readers.names == ["ab"]


def test_lag_is_what_was_committed_after_the_position(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        client = clients_of(stage.log, 1)[0]
        for number in range(4):
            stage.publish(client, "t", b"%d" % number)
        first, last = stage.acks[0][2], stage.acks[-1][2]
        save(stage, "done", {0: 1, 1: last, 2: 1})
        save(stage, "late", {0: 1, 1: first, 2: 1})
        save(stage, "new", {0: 1})

        assert set(stage.log.readers.lag("done").values()) == {Lag(0, 0, 0)}
        assert stage.log.readers.lag("late") == {0: Lag(0, 0, 0), 1: Lag(4, last - first, 3), 2: Lag(0, 0, 0)}
        assert stage.log.readers.lag("new")[1] == Lag(4, last - first + 1, 4)
        assert stage.log.readers.lag("nobody") == {}


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("", {0: 1}),
        ("n" * (NAME_BYTES_MAX + 1), {0: 1}),
        ("a", {}),
        ("a", {3: 1}),
        ("a", {-1: 1}),
        ("a", {0: -1}),
        ("a", {0: 2**56}),
    ],
)
def test_bad_names_and_positions_are_refused(tmp_path: Path, name: str, positions: dict[int, int]) -> None:
    with Stage(tmp_path) as stage, pytest.raises(UsageError):
        save(stage, name, positions)


def test_the_owner_of_a_reader_survives_reopening(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.log.readers.save("a", {1: 5}, owner="ann", pins=True, on_saved=lambda: None, on_refused=unexpected)
        save(stage, "b", {1: 5})
        stage.settle()
        assert (stage.log.readers.owner("a"), stage.log.readers.owner("b")) == ("ann", None)
    with Stage(tmp_path) as stage:
        assert (stage.log.readers.owner("a"), stage.log.readers.owner("b")) == ("ann", None)
        assert stage.log.readers.owner("nobody's") is None


def test_readers_count_for_their_owner_from_when_they_are_asked_for(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        readers = stage.log.readers
        for name, owner in (("a", "ann"), ("b", "ann"), ("c", None), ("d", None)):
            readers.save(name, {0: 1, 1: 1}, owner=owner, pins=True, on_saved=lambda: None, on_refused=unexpected)
        assert (readers.owned("ann"), readers.owned(None), readers.owned("bob")) == (2, 2, 0)
        stage.settle()
        readers.save("c", {0: 2}, owner="bob", pins=True, on_saved=lambda: None, on_refused=unexpected)
        readers.drop("a", on_dropped=lambda: None, on_refused=unexpected)
        stage.settle()

        assert (readers.owned("ann"), readers.owned(None), readers.owned("bob")) == (1, 1, 1)
        assert readers.is_owned_by("c", "bob")
        assert not readers.is_owned_by("c", None)
        assert not readers.is_owned_by("a", None)
        assert len(readers) == 3
    with Stage(tmp_path) as stage:
        readers = stage.log.readers
        assert (readers.owned("ann"), readers.owned(None), readers.owned("bob")) == (1, 1, 1)


def test_the_bound_on_readers_includes_those_being_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_readers, "READERS_MAX", 2)
    with Stage(tmp_path) as stage:
        for name in ("a", "b", "a"):
            stage.log.readers.save(name, {0: 1}, pins=True, on_saved=lambda: None, on_refused=unexpected)
        with pytest.raises(UsageError, match="already 2 named readers"):
            save(stage, "c", {0: 1})
        stage.settle()
        save(stage, "b", {0: 2})
        stage.log.readers.drop("a", on_dropped=lambda: None, on_refused=unexpected)
        stage.settle()
        save(stage, "c", {0: 1})

        assert stage.log.readers.names == ["b", "c"]
