"""The connections of a core to the other cores: two to each of them, for calls and for messages.

The core whose name comes first connects to the other one, so each pair of cores has one pair of connections, and both ends are
told when it is up and when it is gone. The two come and go together.

What arrives on one connection before the other is up waits in its socket.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from msgspec import Struct

from braidmq.base.backoff import Backoff
from braidmq.base.config.addresses import parse_address
from braidmq.cluster.protocol.roles import CALLS, CORE, MESSAGES
from braidmq.net.calls import Calls
from braidmq.net.connection import OnFrame, PeerConnection
from braidmq.net.dialer import FIRST_PAUSE_S, PAUSE_S_MAX, Dialer
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import AskNode, Hello, NodeAnswer

log = logging.getLogger("braidmq.cluster")


class CorePort(Protocol):
    """What a core does with the others; `home.home.Home`."""

    def on_core_up(self, name: str, incarnation: int, calls: Calls, connection: PeerConnection) -> None:
        """A core is connected. Set ``connection.on_frame``, and ``calls.serve`` what it may ask, before this returns."""
        ...

    def on_core_down(self, name: str) -> None:
        """The connections of a core that was up have ended."""
        ...


class LinkRules(Struct, frozen=True):
    """What the connections of one core have in common. ``hello``: by purpose. ``may_act``: see `own_lease`.

    ``is_member``: whether this incarnation of a core is alive, as far as this core knows.
    """

    name: str
    hello: Callable[[str], Hello]
    secret: bytes
    tls: ssl.SSLContext | None
    pause_s_max: float
    write_bytes_max: int
    may_act: Callable[[], bool]
    is_member: Callable[[str, int], bool]


class CoreLinks:
    """The connections to all other cores; `update` says where they are, `accept` takes those that they make."""

    def __init__(self, rules: LinkRules, others: CorePort) -> None:
        self._rules = rules
        self._others = others
        self._addresses: dict[str, str] = {}
        self._dialed: dict[str, _DialedLink] = {}
        self._accepted: dict[str, _Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> list[str]:
        """The cores that are up, by name."""
        links: list[_Link] = [*self._dialed.values(), *self._accepted.values()]
        return sorted(link.name for link in links if link.is_up)

    def update(self, addresses: Mapping[str, str]) -> None:
        """Connect to the cores whose names come later, at these addresses."""
        for name, address in addresses.items():
            if name <= self._rules.name or self._addresses.get(name) == address:
                continue
            self._addresses[name] = address
            if (old := self._dialed.pop(name, None)) is not None:
                self._close(old)
            link = self._dialed[name] = _DialedLink(name, self._rules, self._others)
            link.dial(address)

    def refusal(self, peer: Hello) -> str | None:
        """Why a core that knows the secret cannot connect here; None: it can."""
        if peer.name >= self._rules.name:
            return f"{self._rules.name} connects to {peer.name}, not the other way round"
        if not self._rules.is_member(peer.name, peer.incarnation):
            return f"{peer.name} is not known as a member in this incarnation yet"
        if peer.purpose == MESSAGES:
            link = self._accepted.get(peer.name)
            if link is None or not link.awaits_messages(peer.incarnation):
                return "its connection for calls comes first"
        return None

    def accept(self, connection: PeerConnection) -> None:
        """A core has connected."""
        name = connection.peer.name
        link = self._accepted.get(name)
        if connection.purpose == MESSAGES:
            if link is None or not link.awaits_messages(connection.peer.incarnation):
                connection.abort("its connection for calls has ended")
                return
            link.open_messages(connection)
            return
        if link is not None:
            link.end("the core has connected again")
        link = self._accepted[name] = _Link(name, self._rules, self._others)
        link.open_calls(connection)

    def drop(self, name: str, incarnation: int, reason: str) -> None:
        """End the connections of a core in an incarnation that is over."""
        for link in (self._dialed.get(name), self._accepted.get(name)):
            if link is not None and link.incarnation == incarnation:
                link.end(reason)

    def drop_all(self, reason: str) -> None:
        """End all connections; they are made again."""
        for link in (*self._dialed.values(), *self._accepted.values()):
            link.end(reason)

    async def close(self) -> None:
        """End all connections and make no more."""
        await asyncio.gather(*(link.close() for link in self._dialed.values()))
        for link in self._accepted.values():
            link.end("the node stops")
        if self._closing:
            await asyncio.wait(self._closing)

    def _close(self, link: _DialedLink) -> None:
        task = asyncio.get_running_loop().create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Link:
    """Two connections with one core."""

    def __init__(self, name: str, rules: LinkRules, others: CorePort) -> None:
        self.name = name
        self.is_up = False
        self.incarnation = 0
        self._rules = rules
        self._others = others
        self._calls: Calls | None = None
        self._messages: PeerConnection | None = None

    def awaits_messages(self, incarnation: int) -> bool:
        """Whether the connection for calls is there, and the other one is not."""
        return self._calls is not None and self._messages is None and self.incarnation == incarnation

    def open_calls(self, connection: PeerConnection) -> None:
        """The first connection is there."""
        self.incarnation = connection.peer.incarnation
        self._calls = calls = Calls(connection, requests=AskNode, answers=NodeAnswer)
        connection.on_frame = guarded(self._rules.may_act, calls.receive)

        def on_lost(reason: str) -> None:
            calls.lost(reason)
            if self._calls is calls:
                self._calls = None
                self.end(reason)

        connection.on_lost = on_lost
        connection.pause_reading()

    def open_messages(self, connection: PeerConnection) -> None:
        """The second one is there, too."""
        calls = self._calls
        if calls is None or connection.peer.incarnation != self.incarnation:
            connection.abort("the connection for calls has ended")
            return
        self._messages = connection

        def on_lost(reason: str) -> None:
            if self._messages is connection:
                self._messages = None
                self.end(reason)

        connection.on_lost = on_lost
        self.is_up = True
        log.info("connected with core %s (incarnation %d)", self.name, self.incarnation)
        self._others.on_core_up(self.name, self.incarnation, calls, connection)
        connection.on_frame = guarded(self._rules.may_act, connection.on_frame)
        calls.connection.resume_reading()

    def end(self, reason: str) -> None:
        """End both connections, now."""
        calls, messages, was_up = self._calls, self._messages, self.is_up
        self._calls = self._messages = None
        self.is_up = False
        for connection in (calls.connection if calls is not None else None, messages):
            if connection is not None:
                connection.abort(reason)
        if was_up:
            log.warning("the connections with core %s have ended: %s", self.name, reason)
            self._others.on_core_down(self.name)


class _DialedLink(_Link):
    """Two connections that this core makes."""

    def __init__(self, name: str, rules: LinkRules, others: CorePort) -> None:
        super().__init__(name, rules, others)
        self._address = ""
        self._dialers: dict[str, Dialer] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def dial(self, address: str) -> None:
        """Connect from now on."""
        self._address = address
        self._dial(CALLS, self._on_calls_up, self._on_calls_down)

    async def close(self) -> None:
        """Connect no more."""
        self._is_closed = True
        self.end("the node stops")
        await asyncio.gather(*(dialer.close() for dialer in self._dialers.values()))
        if self._closing:
            await asyncio.wait(self._closing)

    def end(self, reason: str) -> None:
        """End both connections, now; the one for messages is made again after the one for calls."""
        super().end(reason)
        messages = self._dialers.pop(MESSAGES, None)
        if messages is not None:
            task = asyncio.get_running_loop().create_task(messages.close(reason))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _dial(self, purpose: str, on_up: Callable[[PeerConnection], None], on_down: Callable[[str], None]) -> None:
        dialer = self._dialers[purpose] = Dialer(
            parse_address(self._address),
            partial(self._rules.hello, purpose),
            self._rules.secret,
            on_up=on_up,
            on_down=on_down,
            check=self._check,
            tls=self._rules.tls,
            write_bytes_max=self._rules.write_bytes_max,
            backoff=Backoff(FIRST_PAUSE_S, min(PAUSE_S_MAX, self._rules.pause_s_max), spread=True),
        )
        dialer.start()

    def _check(self, peer: Hello) -> str | None:
        if peer.role != CORE or peer.name != self.name:
            return f"it is {peer.name}, a {peer.role}, not the core {self.name}"
        if not self._rules.may_act():
            return "this core is alone"
        if not self._rules.is_member(peer.name, peer.incarnation):
            return f"{peer.name} is not known as a member in this incarnation yet"
        return None

    def _on_calls_up(self, connection: PeerConnection) -> None:
        self.open_calls(connection)
        self._dial(MESSAGES, self.open_messages, self._on_messages_down)

    def _on_calls_down(self, reason: str) -> None:
        self.end(reason)

    def _on_messages_down(self, reason: str) -> None:
        """``on_lost`` has ended the other one."""


def guarded(may_act: Callable[[], bool], receive: OnFrame) -> OnFrame:
    """Hand nothing out once this core is alone: then its connections are about to end (C3)."""

    def checked(kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
        if may_act():
            receive(kind, flags, destination, body)

    return checked
