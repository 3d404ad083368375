"""The phases at the end of a turn run in their order, whatever the order in which they were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

import pytest

from braidmq.broker.turn import Phase, Turn
from braidmq.mqtt.packets import Publish
from tests.support.simulator.world import World

ORDER = [Phase.RESERVATIONS, Phase.STEPS, Phase.WRITE, Phase.KEYS, Phase.SEND, Phase.PEERS, Phase.BACKLOG, Phase.WORK]


class Loop(asyncio.SelectorEventLoop):
    """An event loop that notes the faults of its callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[object] = []
        self.set_exception_handler(lambda loop, context: self.faults.append(context.get("exception")))

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            self.run_until_complete(asyncio.sleep(0))


class Phases:
    """A turn whose phases note that they ran, and then do what the test says."""

    def __init__(self, loop: Loop) -> None:
        self.turn = Turn(loop)
        self.ran: list[Phase] = []
        self.then: dict[Phase, Callable[[], object]] = {}
        for phase in Phase:
            self.turn.at_end(phase, partial(self._run, phase))

    def _run(self, phase: Phase) -> None:
        self.ran.append(phase)
        self.then.pop(phase, lambda: None)()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def phases(loop: Loop) -> Phases:
    return Phases(loop)


def test_phases_run_in_the_order_of_the_enumeration() -> None:
    assert sorted(Phase) == list(Phase) == ORDER


@pytest.mark.parametrize("asked", list(permutations([Phase.RESERVATIONS, Phase.WRITE, Phase.KEYS, Phase.SEND])))
def test_requested_phases_run_once_in_their_order(loop: Loop, phases: Phases, asked: tuple[Phase, ...]) -> None:
    for phase in (*asked, *asked):
        phases.turn.ask(phase)
    assert phases.ran == []

    loop.turns(3)

    assert phases.ran == [Phase.RESERVATIONS, Phase.WRITE, Phase.KEYS, Phase.SEND]


def test_a_later_phase_requested_by_a_phase_runs_in_the_same_turn(loop: Loop, phases: Phases) -> None:
    phases.then[Phase.RESERVATIONS] = partial(phases.turn.ask, Phase.WRITE)
    phases.turn.ask(Phase.SEND)
    phases.turn.ask(Phase.RESERVATIONS)

    loop.turns()

    assert phases.ran == [Phase.RESERVATIONS, Phase.WRITE, Phase.SEND]


@pytest.mark.parametrize("earlier", [Phase.STEPS, Phase.SEND, Phase.PEERS, Phase.BACKLOG])
def test_the_same_or_an_earlier_phase_requested_by_a_phase_runs_after_callbacks_that_arrived_meanwhile(
    loop: Loop, phases: Phases, earlier: Phase
) -> None:
    def go_on() -> None:
        phases.turn.ask(earlier)
        loop.call_soon(arrived.append, list(phases.ran))

    arrived: list[list[Phase]] = []
    phases.then[Phase.BACKLOG] = go_on
    phases.turn.ask(Phase.BACKLOG)

    loop.turns(3)

    assert arrived == [[Phase.BACKLOG]]
    assert phases.ran == [Phase.BACKLOG, earlier]


def test_a_failing_phase_is_reported_and_the_others_run(loop: Loop, phases: Phases) -> None:
    fault = RuntimeError("a test")

    def fail() -> None:
        raise fault

    phases.then[Phase.STEPS] = fail
    phases.turn.ask(Phase.STEPS)
    phases.turn.ask(Phase.WRITE)

    loop.turns(2)
    phases.turn.ask(Phase.STEPS)
    loop.turns(2)

    assert phases.ran == [Phase.STEPS, Phase.WRITE, Phase.STEPS]
    assert loop.faults == [fault]


def test_a_phase_that_was_run_early_does_not_run_again_at_the_end(loop: Loop, phases: Phases) -> None:
    phases.turn.ask(Phase.STEPS)
    phases.turn.ask(Phase.WRITE)

    phases.turn.run_now(Phase.STEPS)
    loop.turns(2)

    assert phases.ran == [Phase.STEPS, Phase.WRITE]


def test_a_phase_that_was_asked_for_can_be_run_before_the_end_and_others_wait(loop: Loop, phases: Phases) -> None:
    phases.turn.ask(Phase.WRITE)
    phases.turn.ask(Phase.PEERS)

    phases.turn.run_asked(Phase.SEND)
    phases.turn.run_asked(Phase.PEERS)

    assert phases.ran == [Phase.PEERS]
    loop.turns(2)
    assert phases.ran == [Phase.PEERS, Phase.WRITE]


def test_a_phase_has_one_step(phases: Phases) -> None:
    with pytest.raises(AssertionError, match="WRITE"):
        phases.turn.at_end(Phase.WRITE, lambda: None)


def test_every_phase_has_its_step_in_a_broker() -> None:
    with World() as world:
        for phase in Phase:
            if phase is not Phase.PEERS:  # a cluster's
                world.broker.turn.ask(phase)

        world.settle()


def test_the_row_of_a_reservation_is_on_its_way_to_the_disk_in_the_turn_that_made_it() -> None:
    with World() as world:
        durable = world.connect("durable")
        durable.subscribe("$share/g/t", qos=2)
        durable.cut()
        member = world.connect("member", expiry=0)
        member.subscribe("$share/g/t", qos=2)
        world.connect("p", expiry=0).send(Publish("t", b"m", 2, False, packet_id=1))
        world.turn()
        writing = [world.is_writing]
        world.sync()  # shows the message to the group, which reserves it for the member
        writing.append(world.is_writing)

        world.turn()

        assert [*writing, world.is_writing] == [True, False, True]
