"""Where to start reading, as clients write it."""

from __future__ import annotations

import pytest

from braidmq.base.errors import UsageError
from braidmq.base.start_position import TIME_MAX_US
from braidmq.storage.format.rows import TIMESTAMP_MAX
from braidmq.storage.reading.positions import Ago, At, Earliest, Latest, Start, parse_start


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("latest", Latest()),
        ("earliest", Earliest()),
        ("0", At(0)),
        ("1700000000123", At(1_700_000_000_123_000)),
        ("1970-01-01T00:00:00Z", At(0)),
        ("2001-09-09T01:46:40Z", At(1_000_000_000_000_000)),
        ("2001-09-09T01:46:40.5Z", At(1_000_000_000_500_000)),
        ("2001-09-09T01:46:40.123456789Z", At(1_000_000_000_123_456)),
        ("-24h", Ago(86_400_000_000)),
        ("-1h30m", Ago(5_400_000_000)),
        ("-500ms", Ago(500_000)),
        ("-0s", Ago(0)),
    ],
)
def test_a_valid_start_is_parsed(text: str, start: Start) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Latest",
        "yesterday",
        "+24h",
        "24h",
        "-",
        "--1h",
        "-1y",
        "-1h ago",
        "1.5",
        "\uff11\uff17",
        "2001-09-09",
        "2001-09-09T01:46:40",
        "2001-09-09T01:46:40+00:00",
        "2001-09-09 01:46:40Z",
        "2001-02-30T00:00:00Z",
        "2001-09-09T24:00:00Z",
        "2001-09-09T01:46:40.Z",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59Z",
        "170000000012300000",
        "9" * 1000,
    ],
)
def test_an_invalid_start_is_rejected_with_a_clear_message(text: str) -> None:
    with pytest.raises(UsageError) as problem:
        parse_start(text)

    assert problem.value.hint
    assert len(str(problem.value)) < 250


def test_a_duration_without_a_unit_is_rejected_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"no unit.*-30s"):
        parse_start("-24")


def test_the_latest_valid_start_is_the_last_timestamp_of_the_log() -> None:
    assert TIME_MAX_US == TIMESTAMP_MAX
