"""The services that a shared group's cursor depends on (`broker.shared.ports.GroupServices`), for tests without a broker."""

from __future__ import annotations

from collections.abc import Callable

from braidmq.broker.shared.cursor import GroupCursor
from braidmq.lane.path.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State
from tests.support.fakes.storage import FakeLog, FakeReplay
from tests.support.simulator.lane import Bench


class FakeGroupServices:
    """Keeps what it was told; ``turn`` lets everything happen that was put off."""

    def __init__(self, bench: Bench) -> None:
        self.log = FakeLog()
        self.hook: Callable[[Message, str], Message | None] | None = None
        self.has_place = True  # for one more reader
        self.awaited: list[str] = []  # client ids whose room was asked for
        self.written: list[bool] = []  # notes of changes; True: at once
        self.forgotten: list[tuple[str, str]] = []
        self.reading: set[GroupCursor] = set()
        self.lost = 0
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

    def replay(self, topic_filter: str, positions: list[int]) -> FakeReplay:
        return self.log.replay([topic_filter], dict(enumerate(positions)))

    def soon(self, log: GroupCursor, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.put_off.append(callback)

    def turn(self) -> None:
        """Let everything happen that was put off, and what follows from it."""
        while self.waiting:
            self.waiting.pop(0)()

    def may_read(self, log: GroupCursor) -> bool:
        if self.has_place:
            self.reading.add(log)
        return self.has_place

    def note_idle(self, log: GroupCursor) -> None:
        """No other reader waits for its slot."""

    def stop_reading(self, log: GroupCursor) -> None:
        self.reading.discard(log)

    def flush(self) -> None:
        self._bench.lane.flush()

    def await_room(self, log: GroupCursor, flow: Flow) -> None:
        self.awaited.append(flow.client_id)

    def note_change(self, log: GroupCursor, at_once: bool) -> None:
        self.written.append(at_once)

    def note_reservation(self, log: GroupCursor) -> None:
        self.reserving.append(log)

    def forget_row(self, name: str, topic_filter: str) -> None:
        self.forgotten.append((name, topic_filter))

    def note_lost(self) -> None:
        self.lost += 1
