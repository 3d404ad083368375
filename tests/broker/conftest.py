"""A running node for the tests of what an operator sees and does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.testing import Broker
from tests.support.certificates import Authority
from tests.support.operated import Operated


@pytest.fixture
def node() -> Iterator[Operated]:
    with Broker() as broker:
        operated = Operated(broker)
        yield operated
        operated.connect.close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)
