"""The demonstration: its picture has every minute of the plant, or says which are missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from scripts import demo


def rows_of(minutes: int) -> list[dict[str, Any]]:
    """Windows of two machines, as `rollup` writes them."""
    begin = datetime.fromtimestamp(demo.START_MS / 1000, UTC)
    figures = {"avg": 60.0, "min": 59.0, "max": 61.0}
    return [
        {
            "window_start": begin + timedelta(minutes=minute),
            "field": field,
            "device": device,
            "pattern": "plant/line1/+/telemetry",
        }
        | figures
        for minute in range(minutes)
        for device in ("machine1", "machine2")
        for field in ("temperature", "power")
    ]


def title_of(minutes: int) -> str:
    return demo.draw(rows_of(minutes)).get_suptitle()


def test_published_messages_move_the_watermark_past_the_last_minute() -> None:
    happened_ms = [payload["ts"] for _, payload in demo.messages()]
    end_ms = demo.START_MS + demo.MINUTES * 60_000

    assert max(happened_ms) - demo.WATERMARK_S * 1000 >= end_ms
    assert {(moment - demo.START_MS) // 60_000 for moment in happened_ms if moment < end_ms} == set(range(demo.MINUTES))
    # The minute after it stays open, and is not one of the picture.
    assert max(happened_ms) - demo.WATERMARK_S * 1000 < end_ms + 60_000


def test_a_picture_without_the_last_minute_says_so() -> None:
    assert "missing" not in title_of(demo.MINUTES)
    assert title_of(demo.MINUTES - 1).endswith("the last 1 of 30 minutes are missing: their windows are open")
