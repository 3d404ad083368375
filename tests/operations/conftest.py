"""A running node together with its operator's view of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.testing import Broker
from tests.support.operated import Operated


@pytest.fixture
def node() -> Iterator[Operated]:
    with Broker() as broker:
        operated = Operated(broker)
        yield operated
        operated.connect.close()
