"""Sessions as an operator sees them, beside a log with records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from braidmq.broker.session.session import NEVER, Session, SessionTable
from braidmq.control.contract import PageRequest
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.state import State
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import Will
from braidmq.operations import sessions as module
from braidmq.operations.sessions import list_sessions, show_session
from tests.support.recording import Recording, recording


class House:
    """A log and sessions that read it."""

    def __init__(self, node: Recording) -> None:
        self.node = node
        self.log = node.log
        self.state = State(1 << 20, 1000)
        self.table = SessionTable()

    def follow(self) -> None:
        """Let those who follow the log be offered what it has."""
        self.state.marks = list(self.log.watermarks.values())

    def add(self, client_id: str, *filters: str, is_durable: bool = True, **fields: Any) -> Session:
        """A session that left 40 seconds ago, and is behind from now on."""
        self.follow()
        flow = LogFlow(client_id, self.state, 100, 100_000, True, is_durable)
        flow.fall_behind()
        session = Session(client_id, flow, time.monotonic())
        session.ended_at = time.monotonic() - 40
        session.expiry_s = 100
        session.subscriptions = {each: Subscription(flow, each.encode(), 1) for each in filters}
        for name, value in fields.items():
            setattr(session, name, value)
        self.table.add(session)
        return session


def with_house(data_dir: Path, talk: Callable[[House], Awaitable[None]]) -> None:
    async def run() -> None:
        async with recording(data_dir) as node:
            await talk(House(node))

    asyncio.run(run())


def test_a_session_that_is_away_shows_what_waits_and_when_it_expires(tmp_path: Path) -> None:
    async def talk(house: House) -> None:
        await house.node.append(*(("c", "t/0", b"") for _ in range(20)))
        house.add("a", "t/1", "t/2")
        await house.node.append(("c", "other", b""))
        [_, oldest, newest] = await house.node.append(*(("c", f"t/{number}", b"") for number in range(3)))

        detail = await show_session(house.table, house.log, "a")

        assert detail is not None
        shown = detail.session
        assert (shown.durable, shown.connected, shown.subscriptions) == (True, False, 2)
        assert 1 <= shown.records_behind < 24
        assert 0 < shown.lag_s <= newest / 1e6
        assert shown.oldest_at == oldest / 1e6
        assert shown.disconnected_at == pytest.approx(time.time() - 40, abs=1)
        assert shown.expires_at == pytest.approx(time.time() + 60, abs=1)
        assert [each.topic_filter for each in detail.subscriptions] == ["t/1", "t/2"]

    with_house(tmp_path, talk)


def test_a_session_that_follows_is_not_behind(tmp_path: Path) -> None:
    async def talk(house: House) -> None:
        connection = SimpleNamespace(opened_at=time.monotonic() - 5)
        session = house.add("a", "#", connection=connection, ended_at=0.0)
        await house.node.append(("c", "t", b""))
        assert isinstance(session.flow, LogFlow)
        session.flow.follow()
        house.follow()

        detail = await show_session(house.table, house.log, "a")

        assert detail is not None
        shown = detail.session
        assert (shown.records_behind, shown.lag_s, shown.oldest_at) == (0, 0.0, None)
        assert shown.connected_at == pytest.approx(time.time() - 5, abs=1)
        assert (shown.disconnected_at, shown.expires_at) == (None, None)

    with_house(tmp_path, talk)


def test_a_session_that_never_expires_says_so_and_an_unknown_session_gives_none(tmp_path: Path) -> None:
    async def talk(house: House) -> None:
        house.add("a", is_durable=False, expiry_s=NEVER, will=Will("gone", b"", 0, False))

        detail = await show_session(house.table, house.log, "a")

        assert detail is not None
        assert (detail.session.durable, detail.session.session_expiry_s, detail.session.expires_at) == (False, None, None)
        assert detail.will_topic == "gone"
        assert await show_session(house.table, house.log, "b") is None

    with_house(tmp_path, talk)


def test_the_search_for_the_oldest_message_gives_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEARCH_S", 0.0)

    async def talk(house: House) -> None:
        house.add("a", "t")
        await house.node.append(("c", "t", b""))

        detail = await show_session(house.table, house.log, "a")

        assert detail is not None
        assert detail.session.oldest_at is None
        assert detail.session.records_behind == 1

    with_house(tmp_path, talk)


def test_a_long_list_does_not_stop_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLICE_S", 0.0)

    async def talk(house: House) -> None:
        for number in range(100):
            house.add(f"c{number:03}")
        turns = 0
        listing = asyncio.create_task(list_sessions(house.table, house.log, PageRequest(limit=80)))
        while not listing.done():
            turns += 1
            await asyncio.sleep(0)

        page = listing.result()
        assert [each.client_id for each in page.items] == [f"c{number:03}" for number in range(80)]
        assert page.cursor == "c079"
        assert turns >= 79

    with_house(tmp_path, talk)


def test_the_table_counts_durable_sessions(tmp_path: Path) -> None:
    async def talk(house: House) -> None:
        first = house.add("a")
        house.add("b", is_durable=False)
        assert house.table.durable == 1

        house.add("a", is_durable=False)  # in place of the first, which must not be counted off twice
        assert house.table.durable == 0
        house.table.remove(first)
        assert (house.table.durable, len(house.table)) == (0, 2)
        house.table.remove(house.add("b"))
        assert house.table.durable == 0

    with_house(tmp_path, talk)
