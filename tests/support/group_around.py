"""What a shared group finds around it in tests without a broker; fills `shared_around.Surroundings`."""

from __future__ import annotations

from collections.abc import Callable

from braidmq.broker.shared_log import GroupLog
from braidmq.lane.flow import Flow
from braidmq.lane.message import Message
from braidmq.lane.state import State
from tests.lane.fakes import Bench
from tests.support.fake_storage import FakeLog, FakeReplay


class GroupAround:
    """Keeps what it was told; ``turn`` lets everything happen that was put off."""

    def __init__(self, bench: Bench) -> None:
        self.log = FakeLog()
        self.hook: Callable[[Message, str], Message | None] | None = None
        self.has_place = True  # for one more reader
        self.awaited: list[str] = []  # client ids whose room was asked for
        self.written: list[bool] = []  # notes of changes; True: at once
        self.forgotten: list[tuple[str, str]] = []
        self.reading: set[GroupLog] = set()
        self.lost = 0
        self.put_off: list[Callable[[], None]] = []  # until some time has passed
        self.promising: list[GroupLog] = []
        self._bench = bench
        self._soon: list[Callable[[], None]] = []
        bench.state.marks = list(self.log.watermarks.values())

    @property
    def state(self) -> State:
        return self._bench.state

    @property
    def asks_hooks(self) -> bool:
        return self.hook is not None

    def ask_hooks(self, message: Message, client_id: str) -> Message | None:
        assert self.hook is not None
        return self.hook(message, client_id)

    def replay(self, topic_filter: str, positions: list[int]) -> FakeReplay:
        return self.log.replay([topic_filter], dict(enumerate(positions)))

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.put_off.append(callback)

    def turn(self) -> None:
        """Let everything happen that was put off, and what follows from it."""
        while self._soon:
            self._soon.pop(0)()

    def may_read(self, log: GroupLog) -> bool:
        if self.has_place:
            self.reading.add(log)
        return self.has_place

    def note_idle(self, log: GroupLog) -> None:
        """Nobody else wants its place."""

    def stop_reading(self, log: GroupLog) -> None:
        self.reading.discard(log)

    def flush(self) -> None:
        self._bench.lane.flush()

    def await_room(self, log: GroupLog, flow: Flow) -> None:
        self.awaited.append(flow.client_id)

    def note_change(self, log: GroupLog, at_once: bool) -> None:
        self.written.append(at_once)

    def note_promise(self, log: GroupLog) -> None:
        self.promising.append(log)

    def forget_row(self, name: str, topic_filter: str) -> None:
        self.forgotten.append((name, topic_filter))

    def note_lost(self) -> None:
        self.lost += 1
