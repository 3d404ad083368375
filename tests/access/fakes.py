"""A clock that stands still until it is told to move, and other small things the access tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from braidmq.access.contract import Credentials

T = TypeVar("T")


class FakeClock:
    """Time that only the test moves."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine on a loop of its own."""
    return asyncio.run(coroutine)


def login(user_name: str | None = None, password: bytes | None = None, **others: Any) -> Credentials:
    """Credentials of a client ``c1`` from 192.0.2.1, unless told otherwise."""
    values = {"client_id": "c1", "peer_host": "192.0.2.1", **others}
    return Credentials(user_name=user_name, password=password, **values)
