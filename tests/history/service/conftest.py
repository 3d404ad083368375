"""A Flight server over a fake log, talking to a node whose answers are the real ones."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.flight as flight
import pytest

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.history import messages
from braidmq.history.node_side.answers import Answers
from braidmq.history.node_side.node_load import NodeLoad
from braidmq.history.node_side.supervisor import Conversation
from braidmq.history.node_side.tokens import Tokens
from braidmq.history.service.node_link import NodeLink
from braidmq.history.service.server import HistoryServer
from braidmq.mqtt.topics import covers
from tests.support.fakes.log_view import FakeView


class FakeRules:
    """What a user may subscribe to: everything that one of these filters covers."""

    unrestricted = False

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed

    def may_publish(self, topic: str) -> bool:
        return False

    def may_subscribe(self, topic_filter: str) -> bool:
        return any(covers(each, topic_filter) for each in self._allowed)


class FakeAccess:
    """Users with passwords and filters; anonymous readers if the listener lets them in."""

    has_users = False  # so that readers without a user may have a name

    def __init__(self) -> None:
        self.passwords = {"ann": b"secret", "bob": b"other"}
        self.allowed: dict[str | None, tuple[str, ...]] = {"ann": ("#",), "bob": ("plant/#",), None: ("plant/#",)}
        self.seen: list[Credentials] = []
        self.asked = 0  # for rules

    async def authenticate(self, credentials: Credentials) -> Verdict:
        self.seen.append(credentials)
        if credentials.user_name is None:
            return Granted(None) if credentials.anonymous_allowed else Refused(0x87, "anonymous clients are not let in")
        known = self.passwords.get(credentials.user_name)
        is_right = known is not None and known == credentials.password
        return Granted(credentials.user_name) if is_right else Refused(0x86, "wrong user name or password")

    def rules_for(self, client_id: str, user_name: str | None) -> FakeRules:
        self.asked += 1
        return FakeRules(self.allowed[user_name])

    def is_still_allowed(self, credentials: Credentials, user_name: str | None) -> bool:
        return credentials.anonymous_allowed if user_name is None else user_name in self.passwords

    def fingerprint(self, user_name: str) -> bytes | None:
        return self.passwords.get(user_name)


class FakeReaders:
    """Keeps what is saved, and whose it is."""

    def __init__(self) -> None:
        self.saved: dict[str, dict[int, int]] = {}
        self.filters: dict[str, list[str]] = {}
        self._owners: dict[str, str | None] = {}

    def owner(self, name: str) -> str | None:
        return self._owners.get(name)

    def is_owned_by(self, name: str, owner: str | None) -> bool:
        return name in self._owners and self._owners[name] == owner

    def owned(self, owner: str | None) -> int:
        return list(self._owners.values()).count(owner)

    def save(
        self,
        name: str,
        positions: dict[int, int],
        *,
        owner: str | None = None,
        filters: Sequence[str] = (),
        pins: bool,
        on_saved: Any,
        on_refused: Any,
    ) -> None:
        assert pins
        self.filters[name] = list(filters)
        self.saved[name] = positions
        self._owners[name] = owner
        on_saved()


class FakeLog:
    """Watermarks and readers."""

    def __init__(self) -> None:
        self.watermarks = {0: 30}
        self.readers: Any = FakeReaders()

    def flush(self) -> None:
        pass


class FakeBurden(NodeLoad):
    """As busy as the test says."""

    is_told_high = False

    def is_high(self) -> bool:
        return self.is_told_high


class Service:
    """The server with everything around it."""

    def __init__(self, *, anonymous_allowed: bool, limits: messages.Limits) -> None:
        self.access = FakeAccess()
        self.log = FakeLog()
        self.view = FakeView()
        self.rests: list[float] = []
        self.tokens = Tokens(b"k" * 32)
        self.burden = FakeBurden()
        self._answers = Answers(
            self.log, self.access, self.tokens, anonymous_allowed=anonymous_allowed, readers_max=100, burden=self.burden
        )
        self._limits = limits
        self._over = asyncio.Event()

    def __enter__(self) -> Service:
        core_side, service_side = socket.socketpair()
        started = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._converse(core_side, started),))
        self._thread.start()
        assert started.wait(10)
        self.node_link = NodeLink(service_side)
        self._listening = threading.Thread(target=self.node_link.listen, args=(lambda: None,))
        self._listening.start()
        setup = messages.Setup("", "", "127.0.0.1", 0, self._limits, None, "info", "text", 10)
        self.server = HistoryServer(setup, self.node_link, self.view, self.rests.append)
        return self

    async def _converse(self, core_side: socket.socket, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        conversation = Conversation(*await asyncio.open_unix_connection(sock=core_side), self._answers)
        started.set()
        taking = self._loop.create_task(self._take(conversation))
        await self._over.wait()
        taking.cancel()
        conversation.close()

    async def _take(self, conversation: Conversation) -> None:
        async for _ in conversation:
            pass

    def hang_up(self) -> None:
        """The node is gone."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._listening.join()

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        if self._thread.is_alive():
            self.hang_up()

    def connect(self) -> flight.FlightClient:
        return flight.connect(f"grpc://127.0.0.1:{self.server.port}")


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(anonymous_allowed=True, limits=messages.Limits(2, 0)) as service:
        yield service


@pytest.fixture
def closed_service() -> Iterator[Service]:
    """A service that rejects anonymous readers."""
    with Service(anonymous_allowed=False, limits=messages.Limits(2, 0)) as service:
        yield service
