"""Where the log of a node is written."""

from __future__ import annotations

import io
import logging

import pytest

from braidmq.base import logs


def test_lines_go_to_what_is_standard_error_when_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("braidmq")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    monkeypatch.setattr(logger, "level", logger.level)
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stderr", first)
    logs.set_up("info", "text", 100)

    monkeypatch.setattr("sys.stderr", second)
    first.close()
    logger.info("still there")

    assert second.getvalue().endswith("info    still there\n")
