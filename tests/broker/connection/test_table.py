"""The connections of a node: what runs for them, and waiting until all are gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from braidmq.broker.bounds.parts import Parts
from braidmq.broker.connection.deadlines import Wheel
from braidmq.broker.connection.table import ConnectionTable
from braidmq.lane.path.channel_reader import HOLD_LOG, HOLD_RATE
from braidmq.mqtt.reasons import Reason


class Client:
    """A connection, as far as the table is concerned with it."""

    wheel_slot = -1
    client_id = "c"

    def __init__(self, hold_bits: int = 0) -> None:
        self.hold_bits = hold_bits
        self.closed_with: int | None = None
        self.resumed: list[int] = []

    def close(self, reason: int, detail: str) -> None:
        self.closed_with = reason

    def schedule_resume(self, bit: int) -> None:
        self.resumed.append(bit)


def new_table() -> ConnectionTable:
    loop = asyncio.get_running_loop()
    return ConnectionTable(loop, Wheel(0.0), Parts(loop, 1000))


def put(table: ConnectionTable, *clients: Client) -> None:
    for client in clients:
        given: Any = client
        table.add(given)


def take_out(table: ConnectionTable, client: Client) -> None:
    given: Any = client
    table.remove(given)


def test_work_that_fails_closes_its_connection_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def run() -> Client:
        client = Client()
        given: Any = client
        new_table().run(fail(), given)
        for _ in range(3):
            await asyncio.sleep(0)
        return client

    with caplog.at_level(logging.ERROR, "braidmq.broker"):
        client = asyncio.run(run())

    assert client.closed_with == Reason.IMPLEMENTATION_SPECIFIC_ERROR
    assert "ZeroDivisionError" in caplog.text


def test_work_that_is_cancelled_leaves_its_connection_alone() -> None:
    async def run() -> Client:
        client = Client()
        given: Any = client
        table = new_table()
        table.run(asyncio.sleep(3600), given)
        await asyncio.sleep(0)
        table.cancel_tasks()
        for _ in range(3):
            await asyncio.sleep(0)
        return client

    assert asyncio.run(run()).closed_with is None


def test_waiting_ends_with_the_last_connection() -> None:
    async def run() -> tuple[bool, bool, bool]:
        table = new_table()
        at_once = await table.wait_empty(0.0)
        client = Client()
        put(table, client)
        in_vain = await table.wait_empty(0.01)
        asyncio.get_running_loop().call_soon(take_out, table, client)
        return at_once, in_vain, await table.wait_empty(10.0)

    assert asyncio.run(run()) == (True, False, True)


def test_only_connections_held_by_the_log_are_resumed_with_it() -> None:
    async def run() -> tuple[list[int], list[int]]:
        held, fast = Client(HOLD_LOG | HOLD_RATE), Client(HOLD_RATE)
        table = new_table()
        put(table, held, fast)
        table.resume_publishers()
        return held.resumed, fast.resumed

    assert asyncio.run(run()) == ([HOLD_LOG], [])
