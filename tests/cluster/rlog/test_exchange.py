"""A server that sends snapshots leaves the loop's time to other work."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from braidmq.cluster.rlog.exchange import TO_SERVER, RlogExchange, RlogLink
from braidmq.cluster.rlog.origin_log import Entry
from braidmq.cluster.rlog.tables import Tables
from braidmq.net.frames import FrameKind
from braidmq.net.proto_v1 import Entries, RlogMessage, RlogWatch, Snapshot

ROWS = 2000
PART_S = 0.001
TIMER_S = 0.001  # the shortest timer of the loop that is one


class Core:
    """A core whose clock goes on by the time of a part whenever it is looked at."""

    def __init__(self, part_s: float = PART_S) -> None:
        self.sent: list[RlogMessage] = []
        self.asked = 0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.now = 0.0
        self._part_s = part_s
        self.tables = Tables(lambda changes: None)
        self.tables.open("routes/core", 1)
        self.exchange = RlogExchange(self.tables, "routes/core", is_core=True, ask=self._ask, on_applied=_ignore)
        self.exchange.rest_with(lambda delay_s, call: self.timers.append((delay_s, call)), self._clock)
        self.link = self.exchange.open(self._send, lambda origin: True)

    def _ask(self) -> None:
        self.asked += 1

    def _clock(self) -> float:
        self.now += self._part_s
        return self.now

    def _send(self, kind: FrameKind, number: int, body: bytes, flags: int) -> None:
        self.sent.append(msgspec.msgpack.decode(body, type=RlogMessage))

    def write(self, count: int, name: str) -> None:
        self.tables.write("routes/core", [Entry(f"{name}/{number}".encode(), b"l") for number in range(count)])

    def watch(self) -> None:
        watch = msgspec.msgpack.encode(RlogWatch("routes/node", False, {}))
        self.link.receive(1, TO_SERVER, watch)

    def parts(self) -> int:
        return sum(isinstance(each, Snapshot) for each in self.sent)


def _ignore(link: RlogLink, origin: str, position: object) -> None:
    pass


def test_after_a_part_of_a_snapshot_it_rests_for_longer_than_the_part_took() -> None:
    core = Core()
    core.write(ROWS, "first")
    core.exchange.run()
    core.watch()

    core.exchange.run()
    core.exchange.run()
    assert core.parts() == 1, "it rests"
    [(rest_s, go_on)] = core.timers
    assert rest_s > PART_S
    before = core.asked
    go_on()
    assert core.asked == before + 1
    core.exchange.run()

    assert core.parts() == 2


def test_the_rest_after_a_short_part_is_one_that_the_loop_can_measure() -> None:
    core = Core(part_s=0.0001)
    core.write(ROWS, "first")
    core.exchange.run()
    core.watch()

    core.exchange.run()

    [(rest_s, _)] = core.timers
    assert rest_s >= TIMER_S


def test_news_do_not_wait_for_the_rest() -> None:
    core = Core()
    core.watch()
    core.exchange.run()
    core.tables.open("routes/large", 1)
    core.tables.write("routes/large", [Entry(str(number).encode(), b"l") for number in range(ROWS)])
    core.exchange.run()
    loading: list[bytes] = []
    other = core.exchange.open(lambda kind, number, body, flags: loading.append(body), lambda origin: True)
    other.receive(1, TO_SERVER, msgspec.msgpack.encode(RlogWatch("routes/other", False, {})))
    core.exchange.run()
    assert len(core.timers) == 1, "it rests"
    parts = len(loading)
    core.sent.clear()
    core.write(1, "news")

    core.exchange.run()

    assert [type(each) for each in core.sent] == [Entries], "the peer that follows hears it at once"
    assert all(isinstance(_decoded(body), Entries) for body in loading[parts:])


def _decoded(body: bytes) -> RlogMessage:
    message: RlogMessage = msgspec.msgpack.decode(body, type=RlogMessage)
    return message


def test_a_server_without_snapshots_does_not_rest() -> None:
    core = Core()
    core.watch()
    core.exchange.run()
    core.sent.clear()

    core.write(1, "first")
    core.exchange.run()

    assert [type(each) for each in core.sent] == [Entries]
    assert core.timers == []
