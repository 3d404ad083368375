"""Logins of a client, and a loop to check them on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from braidmq.access.contract import Credentials

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine on a loop of its own."""
    return asyncio.run(coroutine)


def login(user_name: str | None = None, password: bytes | None = None, **others: Any) -> Credentials:
    """Credentials of a client ``c1`` from 192.0.2.1, unless told otherwise."""
    values = {"client_id": "c1", "peer_host": "192.0.2.1", **others}
    return Credentials(user_name=user_name, password=password, **values)
