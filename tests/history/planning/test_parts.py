"""Parts hold each record of a range once, for any size and number of parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.history.planning.parts import Slice, Target, Weight, split, target_of


@st.composite
def epochs(draw: st.DrawFn) -> list[Weight]:
    """Epochs of a family in order, with gaps between them."""
    found: list[Weight] = []
    end = draw(st.integers(0, 30))
    for _ in range(draw(st.integers(0, 8))):
        start = end + draw(st.integers(0, 10))
        end = start + draw(st.integers(1, 40))
        rows_max = draw(st.integers(1, end - start))
        share = draw(st.sampled_from([0.0, 0.1, 1.0]))
        found.append(Weight(start, end, rows_max, rows_max * 10, rows_max * share, rows_max * 10 * share))
    return found


targets = st.builds(Target, st.floats(0.5, 100), st.floats(0.5, 2000), st.booleans())


@given(families=st.lists(epochs(), max_size=3), target=targets)
def test_every_position_of_an_epoch_is_in_one_part_and_parts_do_not_overlap(families: list[list[Weight]], target: Target) -> None:
    parts = split(families, target)

    covered = [position for part in parts for position in range(part.start + 1, part.end + 1)]
    assert len(covered) == len(set(covered))
    assert sorted(parts, key=lambda part: part.start) == parts
    for weight in (each for family in families for each in family):
        assert set(range(weight.start + 1, weight.end + 1)) <= set(covered)


@given(families=st.lists(epochs(), max_size=3), target=targets)
def test_a_part_is_not_empty_and_states_its_maximum_size(families: list[list[Weight]], target: Target) -> None:
    for part in split(families, target):
        overlapping = [weight for family in families for weight in family if weight.start < part.end and weight.end > part.start]
        assert overlapping
        assert part.rows_max == sum(
            min(weight.rows_max, min(weight.end, part.end) - max(weight.start, part.start)) for weight in overlapping
        )
        assert part.bytes_max == sum(weight.bytes_max for weight in overlapping)


def test_epochs_are_put_together_until_a_part_is_large_enough() -> None:
    family = [Weight(number * 100, number * 100 + 100, 50, 500, 50, 500) for number in range(10)]

    parts = split([family], Target(rows=120))

    assert parts == [
        Slice(0, 300, 150, 1500),
        Slice(300, 600, 150, 1500),
        Slice(600, 900, 150, 1500),
        Slice(900, 1000, 50, 500),
    ]


def test_as_many_parts_as_are_asked_for_are_made_of_few_epochs() -> None:
    family = [Weight(number * 100, number * 100 + 100, 60, 600, 60, 600) for number in range(2)]

    parts = split([family], target_of(family, 8))

    assert [(part.start, part.end) for part in parts] == [(n * 25, n * 25 + 25) for n in range(8)]


def test_parts_have_about_the_rows_and_bytes_that_are_asked_for() -> None:
    family = [Weight(number * 100, number * 100 + 100, 60, 600, 60, 600) for number in range(2)]

    by_rows = split([family], target_of(family, 0, rows_max=20))
    by_bytes = split([family], target_of(family, 0, bytes_max=300))
    large = split([family], target_of(family, 0, bytes_max=5000))

    assert [part.end - part.start for part in by_rows] == [33, 33, 34, 33, 33, 34]
    assert [part.end - part.start for part in by_bytes] == [50, 50, 50, 50]
    assert len(large) == 1
    assert len(split([family], target_of(family, 8, rows_max=30))) == 8, "the smaller size counts"


def test_a_size_that_would_make_too_many_parts_is_not_kept() -> None:
    family = [Weight(at * 10**6, at * 10**6 + 10**6, 10**5, 10**7, 10**5, 10**7) for at in range(1000)]

    assert len(split([family], target_of(family, 0, rows_max=1, bytes_max=1))) <= 10_000


def test_a_part_ends_where_its_epochs_end_and_not_where_others_begin() -> None:
    family = [Weight(100, 200, 10, 10, 10, 10), Weight(700, 800, 10, 10, 10, 10)]

    assert [(part.start, part.end) for part in split([family], Target(rows=10))] == [(100, 200), (700, 800)]


def test_an_empty_range_has_no_parts() -> None:
    assert split([], Target()) == []
    assert split([[], []], target_of([], 4)) == []
