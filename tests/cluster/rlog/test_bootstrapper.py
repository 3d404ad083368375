"""Snapshots of rows that change while their parts are sent."""

from __future__ import annotations

import pytest

from braidmq.cluster.rlog import origin_log
from braidmq.cluster.rlog.bootstrapper import Bootstrapper
from braidmq.cluster.rlog.origin_log import Entry, OriginLog


def key(number: int) -> bytes:
    return b"%d" % number


def log_of(count: int) -> OriginLog:
    log = OriginLog(1)
    log.append([Entry(key(number), b"l") for number in range(count)])
    return log


@pytest.mark.parametrize(("count", "parts"), [(0, 1), (1, 1), (10, 1), (11, 2), (20, 2)])
def test_a_snapshot_has_all_rows_in_parts_and_says_which_is_the_last(count: int, parts: int) -> None:
    snapshot = Bootstrapper("routes/n", log_of(count), 10)

    found = []
    while not snapshot.is_over:
        found.append(snapshot.part()[0])

    assert [name for part in found for name in part.keys] == [key(number) for number in range(count)]
    assert [part.is_first for part in found] == [True] + [False] * (parts - 1)
    assert [part.is_last for part in found] == [False] * (parts - 1) + [True]


def test_rows_that_are_removed_before_their_part_are_left_out_and_new_ones_are_left_to_the_log() -> None:
    log = log_of(6)
    snapshot = Bootstrapper("routes/n", log, 3)
    first, _ = snapshot.part()

    log.append([Entry(key(0), None), Entry(key(4), None), Entry(b"new", b"l"), Entry(key(3), b"g")])
    second, _ = snapshot.part()

    assert (first.keys, second.keys) == ([key(0), key(1), key(2)], [key(3), key(5)])
    assert second.values == [b"g", b"l"]
    assert snapshot.is_over


def test_a_row_that_comes_back_is_in_the_snapshot() -> None:
    log = log_of(3)
    log.append([Entry(key(0), None), Entry(key(0), b"g")])
    snapshot = Bootstrapper("routes/n", log, 10)

    part, _ = snapshot.part()

    assert dict(zip(part.keys, part.values, strict=True)) == log.rows == {key(0): b"g", key(1): b"l", key(2): b"l"}


def test_keys_of_rows_that_come_and_go_are_forgotten_and_a_snapshot_under_way_is_not_disturbed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(origin_log, "_KEYS_GONE_MIN", 5)
    log = log_of(4)
    snapshot = Bootstrapper("routes/n", log, 2)
    first, _ = snapshot.part()

    for number in range(100, 200):
        log.append([Entry(key(number), b"l"), Entry(key(number), None)])
        assert len(log.keys()) <= 2 * len(log.rows) + 5
    second, _ = snapshot.part()

    assert first.keys + second.keys == [key(number) for number in range(4)]
    assert snapshot.is_over
    assert set(log.rows) <= set(log.keys())


def test_rows_that_were_replaced_are_all_in_the_next_snapshot() -> None:
    log = log_of(3)
    log.replace_rows({b"a": b"l", b"b": b"l"})
    log.put(b"c", b"l")

    assert Bootstrapper("routes/n", log, 10).part()[0].keys == [b"a", b"b", b"c"]
