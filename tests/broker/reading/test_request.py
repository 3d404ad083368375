"""The replay options in user properties and in the start of a ``$replay`` filter."""

from __future__ import annotations

import pytest

from braidmq.base.errors import UsageError
from braidmq.base.start_position import Ago, Start
from braidmq.broker.reading.request import NOTHING, ReplayRequest, read_properties, read_start, time_text


def parse(text: str) -> Start:
    """Stands for the storage's own: what it says of a text is not looked into here."""
    if text == "wrong":
        raise UsageError("'wrong' is not a valid start")
    return Ago(sum(text.encode()))


HOUR, NINE_HOURS = parse("-1h"), parse("-9h")


def test_unknown_properties_request_nothing() -> None:
    assert read_properties((("stream_offset", "wrong"), ("x", "1"), ("x", "2")), parse) == NOTHING


@pytest.mark.parametrize(
    ("pairs", "request_"),
    [
        ((("stream-offset", "latest"),), NOTHING),
        ((("stream-offset", "-1h"),), ReplayRequest(HOUR)),
        ((("replay-end", "1"),), ReplayRequest(None, tells_end=True)),
        ((("stream-offset", "-1h"), ("replay-end", "0"), ("replay-complete", "1")), ReplayRequest(HOUR, is_complete=True)),
    ],
)
def test_properties_apply_to_all_filters_of_the_packet(pairs: tuple[tuple[str, str], ...], request_: ReplayRequest) -> None:
    assert read_properties(pairs, parse) == request_


@pytest.mark.parametrize("pairs", [(("stream-offset", "wrong"),), (("replay-end", "true"),), (("replay-end", "1"),) * 2])
def test_invalid_properties_are_an_error(pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(UsageError):
        read_properties(pairs, parse)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("latest", NOTHING),
        ("-1h", ReplayRequest(HOUR)),
        ("-1h,end", ReplayRequest(HOUR, tells_end=True)),
        ("-1h,complete,end", ReplayRequest(HOUR, tells_end=True, is_complete=True)),
        ("latest,end", ReplayRequest(None, tells_end=True)),
    ],
)
def test_words_after_the_start_set_the_same_options_as_properties(text: str, request_: ReplayRequest) -> None:
    assert read_start(text, NOTHING, parse) == request_


def test_the_start_of_a_filter_overrides_that_of_its_packet() -> None:
    packet = ReplayRequest(NINE_HOURS, tells_end=True)

    assert read_start("-1h,complete", packet, parse) == ReplayRequest(HOUR, tells_end=True, is_complete=True)


@pytest.mark.parametrize("text", ["wrong", "-1h,", "-1h,all", "-1h,End"])
def test_an_invalid_start_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        read_start(text, NOTHING, parse)


def test_times_are_written_with_microseconds_in_utc() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000000Z"
    assert time_text(1_709_294_400_000_001) == "2024-03-01T12:00:00.000001Z"
