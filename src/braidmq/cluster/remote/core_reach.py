"""A node's two connections to one core, for calls and for messages.

They come and go together: the one for messages is opened when the core has been told which clients of its own this node has, and
if either of them is lost, both are made anew. A network may lose packets without telling either side: a core on another machine
that has said nothing for a lease is one that is away, or publishers at home there would wait for as long as TCP does.

A node that stood still for a lease may have been declared dead, and what waits in its sockets was meant for a member: it is not
acted on (C3). The connections end, and the core says whether the node still is one when it registers again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from braidmq.base.backoff import Backoff
from braidmq.base.config.addresses import Address
from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.clock.asking import ASK_S, ask_always
from braidmq.cluster.clock.cluster_clock import ClusterClock
from braidmq.cluster.cores.core_doors import WRITE_BYTES_MAX
from braidmq.cluster.membership.own_lease import margin_of
from braidmq.cluster.protocol.roles import CALLS, MESSAGES
from braidmq.cluster.remote.home_link import OUTLET_BYTES_MAX, HomeLink
from braidmq.net.calls import CallError, Calls
from braidmq.net.connection import SILENT_S_MIN, PeerConnection
from braidmq.net.dialer import FIRST_PAUSE_S, PAUSE_S_MAX, Dialer
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import AskNode, Hello, NodeAnswer, Registered
from braidmq.net.proto_v1_batches import BatchOpened, BatchRefused, OpenBatch
from braidmq.net.proto_v1_claims import Declared
from braidmq.net.proto_v1_clock import AskTime, TimeTold
from braidmq.net.proto_v1_retained import RetainedFilters, RetainedMatches, RetainedPage, RetainedRead

log = logging.getLogger("braidmq.cluster")

CALL_S: Final = 10.0
_LOOKS_PER_LEASE: Final = 4
_ANSWERS: Final = Registered | Declared | RetainedPage | RetainedMatches | BatchOpened | BatchRefused | TimeTold | NodeAnswer


class CorePlace(Struct, frozen=True):
    """Where a core is reached, and with which secret."""

    address: Path | Address
    secret: bytes
    tls: ssl.SSLContext | None = None


class ReachOwner(Protocol):
    """The node's side of the cluster; `replicant_side.ReplicantSide`."""

    @property
    def clock(self) -> ClusterClock:
        """The node's cluster clock."""
        ...

    def on_time(self, told: TimeTold) -> None:
        """A core has told the time."""

    def hello(self, purpose: str) -> Hello:
        """Who this node is."""

    async def register(self, reach: CoreReach, calls: Calls) -> Registered:
        """Make this node a member, or show that it is one. Raises Unavailable and CallError."""

    def on_registered(self, reach: CoreReach, is_new: bool) -> None:
        """The core has this node as a member, and another incarnation than before if ``is_new``."""

    def on_refused(self, reason: str) -> None:
        """The core does not take this node for a member."""

    async def answer_core(self, request: AskNode) -> NodeAnswer:
        """What the core asks for its operator."""


class CoreReach:
    """One core. Call ``start``; with ``serve`` the node's clients may use the core; then ``close``."""

    def __init__(self, owner: ReachOwner, place: CorePlace, lease_s: float) -> None:
        self.place = place
        self.name = ""  # once the core has answered
        self.registered: Registered | None = None
        self.label = "the core"  # what log messages call it
        self._owner = owner
        self._lease_s = lease_s
        self._silent_s_max = max(lease_s, SILENT_S_MIN)
        self._calls: Calls | None = None
        self._home: HomeLink | None = None
        self._messages: Dialer | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._dialer: Dialer | None = None
        self._registering: asyncio.Task[None] | None = None
        self._timing: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._watch: asyncio.TimerHandle | None = None

    @property
    def state(self) -> str:
        """What an operator is told of the connection; empty if all is well."""
        if self._calls is None or self.registered is None:
            failure = self._dialer.last_failure if self._dialer is not None else ""
            return f"no connection to {self.label}{f': {failure}' if failure else ''}"
        return ""

    def start(self) -> None:
        """Connect from now on."""
        self._dialer = self._dial(CALLS)
        self._dialer.start()
        if not isinstance(self.place.address, Path):
            self._look_for_silence()

    def _look_for_silence(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self._lease_s / _LOOKS_PER_LEASE, self._look_for_silence)
        for dialer in (self._dialer, self._messages):
            connection = None if dialer is None else dialer.connection
            if connection is not None and connection.silent_s >= self._silent_s_max:
                connection.abort(f"{self.label} was silent for {connection.silent_s:.0f} s")

    def _dial(self, purpose: str) -> Dialer:
        is_calls = purpose == CALLS
        return Dialer(
            self.place.address,
            partial(self._owner.hello, purpose),
            self.place.secret,
            on_up=self._on_up if is_calls else self._on_messages_up,
            on_down=self._on_down if is_calls else self._on_messages_down,
            check=self._check,
            tls=self.place.tls,
            write_bytes_max=WRITE_BYTES_MAX,
            backoff=dial_pauses(self._lease_s),
        )

    def _check(self, peer: Hello) -> str | None:
        if peer.role != "core":
            return f"it is a {peer.role}, not a core"
        if self.name and peer.name != self.name:
            return f"it is {peer.name}, not {self.name}"
        return None

    def serve(self, home: HomeLink) -> None:
        """The node's broker is there, and knows the core as this one."""
        self._home = home
        home.ask_retained = self._ask_retained
        home.ask_batch = self._ask_batch
        if self._calls is not None and self._registering is not None and self._registering.done():
            self._registering = asyncio.get_running_loop().create_task(self._join(self._calls, home))

    async def close(self) -> None:
        """Leave the core."""
        self._is_stopping = True
        if self._watch is not None:
            self._watch.cancel()
        if self._registering is not None:
            self._registering.cancel()
        self._end_timing()
        for dialer in (self._messages, self._dialer):
            if dialer is not None:
                await dialer.close()
        self._messages = self._dialer = None

    # The connection for calls

    def _on_up(self, connection: PeerConnection) -> None:
        self.name = connection.peer.name
        self._calls = calls = Calls(connection, requests=AskNode, answers=_ANSWERS)
        calls.serve({AskNode: self._owner.answer_core})

        def receive(kind: FrameKind, flags: int, destination: int, body: memoryview) -> None:
            if kind is FrameKind.CLAIMS:
                assert self._home is not None  # a core answers claims, which come later
                self._home.receive_claims(flags, body)
            elif kind is FrameKind.EVENTUAL:
                assert self._home is not None
                self._home.receive_eventual(flags, body)
            else:
                calls.receive(kind, flags, destination, body)

        connection.on_frame = receive
        connection.on_lost = calls.lost
        self._distrust_pauses(connection)
        self._registering = asyncio.get_running_loop().create_task(self._register(calls))

    def _distrust_pauses(self, connection: PeerConnection) -> None:
        """A worker's core runs on the same machine, which may be suspended with both of them."""
        if not isinstance(self.place.address, Path):
            connection.stale_s = self._silent_s_max - margin_of(self._silent_s_max)

    def _on_down(self, reason: str) -> None:
        self._calls = None
        if self._registering is not None:
            self._registering.cancel()
        self._end_timing()
        if self._home is not None:
            self._home.lose_calls()
        self._end_messages()
        if not self._is_stopping:
            log.warning("the connection to %s has ended: %s", self.label, reason)

    async def _register(self, calls: Calls) -> None:
        connection = calls.connection
        try:
            answer = await self._owner.register(self, calls)
        except Unavailable as problem:
            connection.abort(f"registration failed: {problem}")
            return
        except CallError as problem:
            if problem.retry_after_s:
                connection.abort(f"registration failed: {problem}")
                return
            log.error("%s refuses this node: %s", self.label, problem)
            self._owner.on_refused(str(problem))
            return
        before, self.registered = self.registered, answer
        is_new = before is not None and answer.core_incarnation != before.core_incarnation
        if before is not None:
            what = "has a new start" if is_new else "is back"
            log.info("%s %s (incarnation %d)", self.label, what, answer.core_incarnation)
        else:
            log.info("member %d of %s (incarnation %d)", answer.registration_id, connection.peer.cluster, answer.incarnation)
        self._timing = asyncio.get_running_loop().create_task(
            ask_always(self._owner.clock, partial(_ask_time, calls), self._owner.on_time)
        )
        self._owner.on_registered(self, is_new)
        if self._home is not None:
            if is_new:
                self._home.meet_new_core()
            await self._join(calls, self._home)

    def _end_timing(self) -> None:
        if self._timing is not None:
            self._timing.cancel()

    @property
    def can_ask(self) -> bool:
        """Whether the core has this node as a member, and can be asked something."""
        return self._calls is not None and self.registered is not None

    async def ask(self, operation: str, arguments: bytes, timeout_s: float) -> bytes:
        """Ask the core something for this node's operator. Raises UsageError and Unavailable."""
        if self._calls is None:
            raise Unavailable(f"{self.label} is not connected", 1.0)
        try:
            answer = await self._calls.call(AskNode(operation, arguments), timeout_s)
        except CallError as problem:
            if problem.retry_after_s:
                raise Unavailable(str(problem), problem.retry_after_s) from None
            raise UsageError(str(problem)) from None
        assert isinstance(answer, NodeAnswer)
        return answer.value

    async def ask_again(self) -> None:
        """Ask a core that has this node as a member for the cores as they are now; nothing if it does not answer."""
        try:
            await self.register_again()
        except (Unavailable, CallError) as problem:
            log.info("%s does not say where the others are: %s", self.label, problem)
            return
        self._owner.on_registered(self, is_new=False)

    async def register_again(self) -> None:
        """Tell a core that has this node as a member what may have changed. Raises Unavailable and CallError."""
        if self._calls is None:
            raise Unavailable(f"{self.label} is not connected", 1.0)
        self.registered = await self._owner.register(self, self._calls)

    async def _join(self, calls: Calls, home: HomeLink) -> None:
        """Tell the core which of its clients this node has, and open the connection for messages."""
        connection = calls.connection
        try:
            assert self.registered is not None  # before it joins
            answer = await calls.call(home.open_calls(connection, self.registered.core_incarnation), CALL_S)
        except (Unavailable, CallError) as problem:
            connection.abort(f"the core did not take the declaration: {problem}")
            return
        assert isinstance(answer, Declared)
        home.blocks.wants_presence = answer.wants_presence
        self._messages = self._dial(MESSAGES)
        self._messages.start()

    # The connection for messages

    def _on_messages_up(self, connection: PeerConnection) -> None:
        home = self._home
        assert home is not None  # the declaration came from it
        connection.on_frame = home.receive
        connection.on_room = home.note_room
        connection.room_bytes = OUTLET_BYTES_MAX // 8
        connection.on_lost = lambda reason: home.lose_messages(connection)
        self._distrust_pauses(connection)
        home.open_messages(connection)

    def _on_messages_down(self, reason: str) -> None:
        """Make both connections anew: the core must hear of this node's clients before its messages."""
        if self._dialer is not None and self._dialer.connection is not None:
            self._dialer.connection.close(f"the connection for messages has ended: {reason}")

    def _end_messages(self) -> None:
        messages, self._messages = self._messages, None
        if messages is not None:
            task = asyncio.get_running_loop().create_task(messages.close("the connection for calls has ended"))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _ask_retained(self, request: RetainedRead | RetainedFilters) -> RetainedPage | RetainedMatches:
        if self._calls is None:
            raise Unavailable(f"{self.label} is not connected", 1.0)
        answer = await self._calls.call(request, CALL_S)
        assert isinstance(answer, RetainedPage | RetainedMatches)
        return answer

    async def _ask_batch(self, request: OpenBatch) -> BatchOpened | BatchRefused:
        if self._calls is None:
            raise Unavailable(f"{self.label} is not connected", 1.0)
        answer = await self._calls.call(request, CALL_S)
        assert isinstance(answer, BatchOpened | BatchRefused)
        return answer


async def _ask_time(calls: Calls) -> TimeTold:
    answer = await calls.call(AskTime(), ASK_S)
    assert isinstance(answer, TimeTold)
    return answer


def dial_pauses(lease_s: float) -> Backoff:
    """The pauses between attempts to reach the core. A core that restarts waits a lease for its nodes, then they are dead."""
    return Backoff(FIRST_PAUSE_S, min(PAUSE_S_MAX, lease_s / 4), spread=True)
