"""Brokers for the scenarios. Each test has clients of its own; whatever it does, the broker must come out unharmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from braidmq.testing import Broker
from tests.support.stage import ErrorLog, Stage


@pytest.fixture(scope="module")
def plain_broker() -> Iterator[Broker]:
    """A broker with default settings, for all tests of a module."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def stage(plain_broker: Broker) -> Iterator[Stage]:
    """The broker with default settings and no clients."""
    with ErrorLog().listening() as errors:
        stage = Stage(plain_broker, errors)
        yield stage
        stage.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Stage]]:
    """Starts brokers with settings of their own: ``start(limits={"connect_timeout": "1s"})``."""
    with ExitStack() as stack, ErrorLog().listening() as errors:
        stages: list[Stage] = []

        def start(**tables: Any) -> Stage:
            stages.append(Stage(stack.enter_context(Broker(**tables)), errors))
            return stages[-1]

        yield start
        for stage in stages:
            stage.close()
