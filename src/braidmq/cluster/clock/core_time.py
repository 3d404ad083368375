"""A core's part in the cluster's time: it asks the other cores, writes the ceiling, and tells its nodes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from braidmq.base.errors import Unavailable, UsageError
from braidmq.cluster.clock.asking import ASK_S, ask_always
from braidmq.cluster.clock.cluster_clock import ClusterClock
from braidmq.cluster.clock.reference import CEILING_KEY, CLOCK, OtherCore, Reference, decode_ceiling, encode_ceiling
from braidmq.cluster.clock.watch import LOOK_S, ClockWatch
from braidmq.cluster.cores.core_calls import CoreCalls
from braidmq.cluster.corestore.contract import Condition, CoreStore, PutRow, revision_of
from braidmq.cluster.membership.members import LiveMember
from braidmq.cluster.protocol.roles import CORE
from braidmq.net.proto_v1_clock import AskTime, TimeTold

log = logging.getLogger("braidmq.cluster")

_OPERATION: Final = "time"
_told: Final = msgspec.msgpack.Decoder(TimeTold)


class CoreTime:
    """Call `begin`, then `start`, then `stop`."""

    def __init__(self, name: str, wall_s: Callable[[], float] = time.time) -> None:
        self.clock = ClusterClock()
        self.watch = ClockWatch(self.clock, lambda: True, wall_s)
        self._name = name
        self._wall_s = wall_s
        self._store: CoreStore
        self._alive: Callable[[], Mapping[str, LiveMember]]
        self._reference: Reference
        self._tasks: list[asyncio.Task[None]] = []
        self._trouble = ""

    async def begin(self, registration_id: int, store: CoreStore, alive: Callable[[], Mapping[str, LiveMember]]) -> None:
        """This core is a member; an only one knows the time from now on. ``alive``: the members by name. Raises Unavailable."""
        self._store, self._alive = store, alive
        self._reference = Reference(self.clock, registration_id, self._wall_s)
        await self._decide()

    async def _decide(self) -> None:
        others = self._others()
        if not self._reference.needs_row(others):
            return
        row = await self._store.get(CLOCK, CEILING_KEY)
        planned = self._reference.plan(decode_ceiling(row), others)
        if planned is None:
            return
        was_reference = self.clock.is_reference
        write = PutRow(CLOCK, CEILING_KEY, encode_ceiling(planned))
        if await self._store.commit([Condition(CLOCK, CEILING_KEY, revision_of(row))], [write]) is not None:
            self._reference.written(planned)
            if self.clock.is_reference and not was_reference:
                log.info("this core gives the cluster its time (reign %d)", self.clock.reign)

    def start(self, calls: CoreCalls) -> None:
        """Ask the other cores, and answer them."""
        calls.serve(_OPERATION, self._answer)
        self._run(self._lead(), "time of the cluster")
        for core in calls.cores:
            ask = partial(self._ask, calls, core)
            self._run(ask_always(self.clock, ask, partial(self._note, core)), f"time of core {core}")

    def stop(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    def tell(self, request: AskTime) -> TimeTold:
        """What a node is told that asks for the time."""
        return self.clock.tell()

    def _others(self) -> list[OtherCore]:
        return [
            OtherCore(member.registration_id, member.incarnation)
            for member in self._alive().values()
            if member.role == CORE and member.name != self._name
        ]

    async def _lead(self) -> None:
        while True:
            self.watch.look()
            try:
                await self._decide()
                self._trouble = ""
            except Unavailable as problem:
                if not self._trouble:
                    log.warning("the ceiling of the cluster's time cannot be written: %s", problem)
                self._trouble = str(problem)
            await asyncio.sleep(LOOK_S)

    async def _answer(self, arguments: bytes) -> bytes:
        return msgspec.msgpack.encode(self.clock.tell())

    async def _ask(self, calls: CoreCalls, core: str) -> TimeTold:
        answer = await calls.ask(core, _OPERATION, b"", ASK_S)
        try:
            return _told.decode(answer)
        except msgspec.MsgspecError as problem:
            raise UsageError(f"core {core} does not tell the time: {problem}") from None

    def _note(self, core: str, told: TimeTold) -> None:
        member = self._alive().get(core)
        if member is not None:
            self._reference.note_reign(member.incarnation, told.reign)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(_report)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "a task of the cluster died", "exception": error, "task": task})
