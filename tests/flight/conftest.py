"""A history service that answers from memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fakes.history_service import FakeHistoryService


@pytest.fixture
def history() -> Iterator[FakeHistoryService]:
    """Without records, on a free port of this machine."""
    with FakeHistoryService() as service:
        yield service
