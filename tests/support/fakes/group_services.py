"""The services that a shared group's cursor depends on (`broker.shared.ports.GroupServices`), for tests without a broker."""

from __future__ import annotations

from collections.abc import Callable

from braidmq.broker.ports import Change, GroupRow
from braidmq.broker.reading.slots import Reader
from braidmq.broker.reading.source import LogSource
from braidmq.broker.shared.cursor import GroupCursor
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State
from tests.support.fakes.storage import FakeLog
from tests.support.simulator.lane import Bench


class FakeSlots:
    """As many slots as the test says: enough, or none; implements `reading.slots.Slots`."""

    def __init__(self) -> None:
        self.is_free = True
        self.reading: set[Reader] = set()

    def admit(self, reader: Reader) -> bool:
        if self.is_free:
            self.reading.add(reader)
        return self.is_free

    def note_idle(self, reader: Reader) -> None:
        """No other reader needs its slot."""

    def leave(self, reader: Reader) -> None:
        self.reading.discard(reader)


class FakeGroupServices:
    """Keeps what it was told; ``turn`` runs everything that was deferred."""

    def __init__(self, bench: Bench) -> None:
        self.log = FakeLog()
        self.hook: Callable[[Message, str], Message | None] | None = None
        self.slots = FakeSlots()
        self.source = LogSource(self.log, bench.state, self.later)
        self.awaited: list[str] = []  # client ids whose room was asked for
        self.written: list[bool] = []  # notes of changes; True: at once
        self.rows: list[GroupRow] = []  # written at once
        self.forgotten: list[tuple[str, str]] = []
        self.lost = 0
        self.blocked: list[GroupCursor] = []
        self.put_off: list[Callable[[], None]] = []  # until some time has passed
        self.reserving: list[GroupCursor] = []
        self._bench = bench
        self.waiting: list[Callable[[], None]] = []  # for the next turn
        bench.state.marks = list(self.log.watermarks.values())

    @property
    def state(self) -> State:
        return self._bench.state

    @property
    def asks_hooks(self) -> bool:
        return self.hook is not None

    def ask_hooks(self, message: Message, client_id: str) -> Message | None:
        assert self.hook is not None
        changed = self.hook(message, client_id)
        return changed if changed is None or changed is message else changed.in_place_of(message)

    def soon(self, log: GroupCursor, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.put_off.append(callback)

    def turn(self) -> None:
        """Run everything that waits for a turn, and what follows from it."""
        while self.waiting:
            self.waiting.pop(0)()

    def flush(self) -> None:
        self._bench.lane.flush()

    def await_room(self, log: GroupCursor, flow: Flow) -> None:
        self.awaited.append(flow.client_id)

    def note_blocked(self, log: GroupCursor) -> None:
        self.blocked.append(log)

    def note_left(self) -> None:
        self.blocked = [log for log in self.blocked if log.keeps_waiting()]

    def note_change(self, log: GroupCursor, at_once: bool) -> None:
        self.written.append(at_once)

    def note_reservation(self, log: GroupCursor) -> None:
        self.reserving.append(log)

    def write_row(self, log: GroupCursor) -> None:
        self.rows.append(log.row())

    def row_of(self, log: GroupCursor) -> Change:
        self.rows.append(log.row())
        log.is_kept = True
        return Change()

    def forget_row(self, name: str, topic_filter: str) -> None:
        self.forgotten.append((name, topic_filter))

    def note_lost(self) -> None:
        self.lost += 1
