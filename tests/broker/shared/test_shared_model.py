"""A group of durable sessions against an oracle: members come and go, the disk is late or full, the process crashes.

Whatever happens, every message that was recorded while the group existed reaches a member; one that was taken with QoS 2 reaches
nobody else and no second time; and as soon as members come back and acknowledge, nothing is left waiting.

Only what was lent with QoS 2 to a session in memory may end with the process, for so does that session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from braidmq.access.local import LocalAccess
from braidmq.base.config.settings import Settings
from braidmq.broker.broker import Broker
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.messages.message import make_message
from braidmq.mqtt.packets import Connack, Suback, Unsuback
from tests.support.fakes.storage import FakeLog, fake_storage
from tests.support.simulator.receiver import Receiver
from tests.support.stage import ErrorLog

FILTER = "$share/g/t/+"
WINDOW = 2
DURABLE = ("a", "b", "c")
MORTAL = "m"  # its session ends with its connection
PUBLISHERS = ("p", "q", "r")

anybody = st.sampled_from((*DURABLE, MORTAL))


class GroupMachine(RuleBasedStateMachine):
    """A broker, its clients, and what they are owed."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[object] = []
        self.errors = ErrorLog()
        self.listening = ExitStack()
        self.listening.enter_context(self.errors.listening())
        self.listening.enter_context(patch("braidmq.broker.shared.cursor._STORE_AGAIN_S", 0.0))
        self.loop = self._make_loop()
        self.log = FakeLog()
        self.broker = self._start()
        self.clients = {name: Receiver(name, 3600, WINDOW) for name in DURABLE}
        self.clients[MORTAL] = Receiver(MORTAL, 0, WINDOW)
        self.members: set[str] = set()
        self.recorded = 0  # of the log's records, those that the oracle has looked at
        self.owed: set[bytes] = set()
        self.reserved: set[bytes] = set()  # to the session in memory, since the disk had everything last
        self.taken: list[tuple[str, bytes, int]] = []  # client, payload, QoS, in the order of acceptance
        self.numbers = iter(range(1_000_000))

    # The broker

    def _run(self, work: Callable[[], object]) -> None:
        """Do something on the loop, and let everything happen that follows from it without the disk."""

        async def run() -> None:
            work()
            for _ in range(20):
                await asyncio.sleep(0)

        self.loop.run_until_complete(run())
        assert not self.failures
        assert not self.errors.lines
        self._look()

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _, context: self.failures.append(context))
        return loop

    def _start(self) -> Broker:
        made: list[Broker] = []

        async def start() -> None:
            configuration = Settings()
            broker = Broker(configuration, LocalAccess(configuration), Hooks(), fake_storage(self.log))
            broker.restore()
            made.append(broker)

        self.loop.run_until_complete(start())
        return made[0]

    def _look(self) -> None:
        """Note what was recorded and what was accepted."""
        for _, record in self.log.records[self.recorded :]:
            if self.members:
                self.owed.add(record.payload)
        self.recorded = len(self.log.records)
        for group in self.broker.groups:
            reservations = group.log._reservations._open
            self.reserved |= {reservation.message.payload for reservation in reservations}
            if not reservations and not self.log.uncommitted and not group.log.is_changed:
                self.reserved.clear()
        for name, client in self.clients.items():
            for payload, qos in client.accepted:
                before = [(who, at) for who, what, at in self.taken if what == payload]
                assert all(at < 2 for _, at in before), f"{name} got {payload!r}, which is {before[-1][0]}'s for good"
                self.taken.append((name, payload, qos))
                self.owed.discard(payload)
            client.accepted = []

    def _commit_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert self.log.uncommitted, "it never comes: nothing is under way to the disk"
            self._run(self._commit_one)

    def _commit_one(self) -> None:
        if self.log.uncommitted:
            self.log.commit()

    # What happens

    @initialize(qos=st.sampled_from(((1, 1), (2, 2), (1, 2))))
    def begin(self, qos: tuple[int, int]) -> None:
        """Most of what matters happens to a group that is there."""
        for name, each in zip(("a", "b"), qos, strict=True):
            self._connect(name, is_clean=True)
            self._subscribe(name, each)

    @rule(name=anybody, event=st.sampled_from(("connect", "connect", "lose", "lose", "begin anew", "subscribe", "unsubscribe")))
    def come_or_go(self, name: str, event: str) -> None:
        match event:
            case "connect":  # also if it is connected: then the new connection takes the session over
                self._connect(name, is_clean=name == MORTAL)
            case "lose":
                if name == MORTAL:
                    self._forget_member(name)
                self._run(self.clients[name].lose)
            case "begin anew":
                self._connect(name, is_clean=True)
            case "subscribe":
                self._subscribe(name, 2)
            case "unsubscribe":
                self._unsubscribe(name)

    def _connect(self, name: str, is_clean: bool) -> None:
        client = self.clients[name]
        if is_clean:
            self._forget_member(name)
        self._run(lambda: client.connect(self.broker, is_clean))
        self._commit_until(lambda: client.has_heard(Connack))

    def _forget_member(self, name: str) -> None:
        """It leaves for good: what may have been sent to it with QoS 2 goes with it, and the group with the last member."""
        session = self.broker.sessions.get(name)
        if session is not None:
            places = {each.place() for _, each in session.flow.inflight_items() if each.is_unread()}
            self.owed -= {record.payload for shard, record in self.log.records if (shard, record.timestamp) in places}
            self.owed -= {each.message.payload for _, each in session.flow.inflight_items() if each.qos == 2 and each.message}
        self.members.discard(name)
        if not self.members:
            self.owed.clear()

    def _subscribe(self, name: str, qos: int) -> None:
        client = self.clients[name]
        if client.is_connected:
            client.told = []
            self._run(lambda: client.subscribe(FILTER, qos))
            self._commit_until(lambda: client.has_heard(Suback))
            self.members.add(name)

    def _unsubscribe(self, name: str) -> None:
        client = self.clients[name]
        if client.is_connected and name in self.members:
            client.told = []
            self._forget_member(name)
            self._run(lambda: client.unsubscribe(FILTER))
            self._commit_until(lambda: client.has_heard(Unsuback))

    @rule(publisher=st.sampled_from(PUBLISHERS), qos=st.sampled_from((1, 2, 2)), count=st.integers(1, 4))
    def publish(self, publisher: str, qos: int, count: int) -> None:
        flow = self.broker.flows.make(publisher, is_durable=False)

        def publish() -> None:
            for _ in range(count):
                message = make_message(f"t/{publisher}", b"%d" % next(self.numbers), qos, publisher=publisher)
                self.broker.pipeline.publish(message, flow)

        self._run(publish)

    @rule(name=anybody, count=st.integers(1, 4))
    def acknowledge(self, name: str, count: int) -> None:
        for _ in range(count):
            self._run(self.clients[name].acknowledge)

    @rule(count=st.integers(1, 6))
    def commit(self, count: int) -> None:
        for _ in range(count):
            self._run(self._commit_one)

    @rule(name=anybody)
    def serve(self, name: str) -> None:
        """The disk and one client keep up for a while."""
        for _ in range(8):
            self._run(self._commit_one)
            self._run(self.clients[name].acknowledge)

    @rule()
    def tick(self) -> None:
        self._run(self.broker.cursors.tick)

    @rule(name=anybody, publisher=st.sampled_from(PUBLISHERS), commits=st.integers(0, 3))
    def fill_disk(self, name: str, publisher: str, commits: int) -> None:
        """Nothing can be written for a while; what was written before is still committed."""
        self.log.is_full = True
        for _ in range(commits):
            self._run(self._commit_one)
        self.acknowledge(name, 1)
        self.publish(publisher, 2, 1)
        self.tick()
        self.log.is_full = False

    @rule(kept=st.integers(0, 3), returning=st.sets(st.sampled_from(DURABLE)))
    def crash(self, kept: int, returning: set[str]) -> None:
        """The process dies with so many of its writes on disk that were not committed, and is started again."""
        self._abandon()
        self.owed -= self.reserved
        self._forget_member(MORTAL)
        for client in self.clients.values():
            client.forget_connection()
        self.log = self.log.crashed(kept)
        self.broker = self._start()
        self._look()
        for name in sorted(returning):
            self._connect(name, is_clean=False)

    def _abandon(self) -> None:
        """The process is dead: none of its timers or callbacks comes any more."""
        self.loop.close()
        self.loop = self._make_loop()

    # The end

    def teardown(self) -> None:
        """Everybody comes back and acknowledges: then nothing is owed any more, and nothing is left over."""
        try:
            self._finish()
        finally:
            self.loop.close()
            self.listening.close()

    def _finish(self) -> None:
        for name in DURABLE:
            self._connect(name, is_clean=False)
        for _ in range(500):
            if not any(client.answers for client in self.clients.values()) and not self.log.uncommitted:
                break
            for client in self.clients.values():
                self._run(client.acknowledge)
            self._run(self._commit_one)
        if self.members:
            assert not self.owed, f"never delivered: {sorted(self.owed)}"


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(stateful_step_count=60)
