"""The directory of epochs finds where a search goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.storage.format.rows import STATIC_IDS_MAX, EpochRow
from braidmq.storage.shard.epochs import EpochDirectory, OpenEpoch

IDS = frozenset((b"\0\0\0\1", b"\0\0\0\2"))


def directory(*spans: tuple[int, int]) -> EpochDirectory:
    return EpochDirectory(EpochRow(start, end, 10, 100, frozenset(IDS)) for start, end in spans)


@given(st.lists(st.integers(1, 60), max_size=12, unique=True), st.booleans(), st.integers(0, 70), st.integers(0, 70))
def test_the_epoch_after_a_position_is_the_first_with_a_later_record(
    edges: list[int], has_open: bool, position: int, floor: int
) -> None:
    edges.sort()
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    known = directory(*spans)
    if has_open:
        known.open = OpenEpoch(100, 120, 1, 1, set())
        spans.append((100, 120))
    known.forget_below(floor)
    left = [span for span in spans if span[0] >= floor]

    found = known.after(position)

    expected = next(((start, end) for start, end in left if end > position), None)
    assert (None if found is None else (found.start, found.end)) == expected
    assert [(epoch.start, epoch.end) for epoch in known] == left
    assert len(known) == len(left)
    assert known.count == sum(1 if start == 100 else 10 for start, _ in left)
    assert known.size_bytes == sum(1 if start == 100 else 100 for start, _ in left)
    assert [epoch.start for epoch in known.closed_between(floor, 80)] == [start for start, _ in left if start < 80]


def test_epochs_with_the_same_patterns_share_one_set() -> None:
    first, second = directory((1, 2), (3, 4)).closed

    assert first.static_ids is second.static_ids


def test_too_many_static_ids_mean_any() -> None:
    epoch = OpenEpoch(1, 1, 1, 1, set())

    epoch.add_static_ids({number.to_bytes(4, "big") for number in range(STATIC_IDS_MAX)})
    assert epoch.row().static_ids is not None
    epoch.add_static_ids({b"more"})

    assert epoch.row().static_ids is None


def test_an_index_without_room_for_a_static_id_means_any() -> None:
    epoch = OpenEpoch(1, 1, 1, 1, set())

    epoch.add_static_ids({b"\1"})

    assert epoch.row().static_ids is None


def test_sizes_are_those_of_all_epochs() -> None:
    known = directory((1, 2), (3, 4))
    known.open = OpenEpoch(5, 6, 3, 7, None)

    assert (known.count, known.size_bytes) == (23, 207)
