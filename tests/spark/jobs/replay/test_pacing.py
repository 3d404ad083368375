"""Replays: when what is published, and to which topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.replay.pacing import CHUNK_ROWS_MAX, Pacer, TopicMap, parse_speed
from tests.spark.jobs.replay.fake_time import FakeTime


def published(moments: list[float], speed: float | None = None, rate: float | None = None) -> list[float]:
    """When each row is given out, counted from the beginning."""
    fake = FakeTime()
    pacer: Pacer[float] = Pacer(lambda row: row, speed=speed, rate=rate, clock=fake.clock, sleep=fake.sleep)
    times = []
    rows: list[float] = []
    for chunk in pacer.chunks(moments):
        assert 0 < len(chunk) <= CHUNK_ROWS_MAX
        rows += chunk
        times += [fake.now - 100.0] * len(chunk)
    assert rows == moments
    return times


def test_the_tempo_of_the_record_is_kept_and_can_be_raised() -> None:
    moments = [1000.0, 1000.0, 1002.0, 1010.0]

    assert published(moments, speed=1.0) == pytest.approx([0, 0, 2, 10])
    assert published(moments, speed=10.0) == pytest.approx([0, 0, 0.2, 1])
    assert published(moments) == [0, 0, 0, 0]


def test_a_rate_holds_back_bursts_and_is_not_made_up_for_after_a_pause() -> None:
    assert published([0.0] * 5, rate=2) == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert published([0.0, 10.0, 10.0, 10.0], speed=1.0, rate=2) == pytest.approx([0, 10, 10.5, 11])


@given(
    st.lists(st.floats(0, 100), max_size=50).map(sorted),
    st.none() | st.floats(0.1, 100),
    st.none() | st.floats(0.5, 1000),
)
def test_rows_are_neither_early_nor_out_of_order(moments: list[float], speed: float | None, rate: float | None) -> None:
    times = published(moments, speed, rate)

    assert times == sorted(times)
    if speed is not None:
        assert all(at >= (moment - moments[0]) / speed - 1e-6 for at, moment in zip(times, moments, strict=True))
    if rate is not None:
        # Whatever the span, not more rows than the rate allows in it, and one.
        for first in range(len(times)):
            assert len(times) - first <= (times[-1] - times[first]) * rate + 1 + 1e-6


def test_a_long_run_of_due_rows_comes_in_chunks_that_are_bounded() -> None:
    assert len(published([0.0] * (3 * CHUNK_ROWS_MAX + 1))) == 3 * CHUNK_ROWS_MAX + 1


def test_topics_are_renamed_by_the_first_rule_that_matches_and_get_the_prefix() -> None:
    topics = TopicMap([r"^plant/(\w+)/(.*)=>site/\2/\1", r"plant=>never"], "replay/")

    assert topics.of("plant/a/temp") == "replay/site/temp/a"
    assert topics.of("x/plant") == "replay/x/never"
    assert topics.of("y") == "replay/y"
    assert TopicMap().of("a/b") == "a/b"


@pytest.mark.parametrize("rule", ["plant", "(=>x", r"a=>\9"])
def test_a_rule_that_cannot_be_used_is_rejected_with_a_clear_message(rule: str) -> None:
    with pytest.raises(UsageError, match="--map"):
        TopicMap([rule])


def test_an_invalid_mapped_topic_is_reported_with_the_original_topic() -> None:
    with pytest.raises(UsageError, match=r"'a/b' would become '#/b'"):
        TopicMap(["^a=>#"]).of("a/b")


def test_speeds_are_written_with_or_without_an_x() -> None:
    assert [parse_speed(each) for each in ("1x", "10", "0.5x", "max")] == [1.0, 10.0, 0.5, None]
    for wrong in ("fast", "0", "-1x", "inf"):
        with pytest.raises(UsageError):
            parse_speed(wrong)
