"""Reading for many: a bounded part of each turn of the loop, and one piece for each owner before the next one for any."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable

from braidmq.broker.bounds.turns import TURN_S, Turns
from braidmq.broker.turn import Turn

PIECE_S = TURN_S / 2


class FakeLoop:
    """Calls back when the test says so; each piece of work takes half of what a turn has."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: list[Callable[[], None]] = []
        self.turns = Turns(Turn(self), lambda: self.now)  # type: ignore[arg-type]
        self.done: list[str] = []
        self.faults: list[object] = []

    def call_exception_handler(self, context: dict[str, object]) -> None:
        self.faults.append(context["exception"])

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def add(self, owner: str, name: str) -> None:
        self.turns.add(owner, lambda: self._work(name))

    def _work(self, name: str) -> None:
        self.now += PIECE_S
        self.done.append(name)

    def turn(self) -> list[str]:
        """One turn of the loop; what was done in it."""
        ready, self.ready = self.ready, []
        assert len(ready) <= 1, "asked for once"
        before = len(self.done)
        for callback in ready:
            callback()
        return self.done[before:]


def test_work_ends_after_one_piece_in_a_turn_for_whose_end_clients_wait() -> None:
    loop = FakeLoop()
    for number in range(4):
        loop.add("one", str(number))

    loop.turns.is_urged = lambda: True
    urged = loop.turn(), loop.turn()
    loop.turns.is_urged = lambda: False

    assert urged == (["0"], ["1"])
    assert loop.turn() == ["2", "3"]


def test_a_turn_does_work_for_a_bounded_time_however_much_waits() -> None:
    loop = FakeLoop()
    for number in range(1000):
        loop.add("one", str(number))

    turns = []
    while done := loop.turn():
        turns.append(len(done))

    assert sum(turns) == 1000
    assert max(turns) == TURN_S / PIECE_S
    assert len(loop.turns) == 0


def test_owners_take_turns_however_much_each_has_to_do() -> None:
    loop = FakeLoop()
    for number in range(300):
        loop.add("greedy", f"greedy {number}")
    loop.add("modest", "modest 0")
    loop.add("modest", "modest 1")

    while len(loop.done) < 4:
        loop.turn()

    assert loop.done == ["greedy 0", "modest 0", "greedy 1", "modest 1"]


def test_work_added_meanwhile_waits_for_the_next_turn() -> None:
    loop = FakeLoop()

    def work_again() -> None:
        loop.done.append("again")
        loop.turns.add("one", work_again)

    loop.turns.add("one", work_again)

    assert loop.turn() == ["again"]
    assert loop.turn() == ["again"]


def test_work_that_fails_does_not_keep_the_others_from_their_turns() -> None:
    loop = FakeLoop()

    fault = ValueError("a test")

    def fail() -> None:
        raise fault

    loop.turns.add("one", fail)
    loop.add("two", "done")

    loop.turn()
    loop.turn()

    assert loop.done == ["done"]
    assert loop.faults == [fault]


def test_a_step_is_repeated_until_it_says_that_it_was_the_last_and_others_have_their_turns_between() -> None:
    loop = FakeLoop()
    left = {"a": 3, "b": 2}

    def step(name: str) -> bool:
        loop._work(name)
        left[name] -= 1
        return not left[name]

    for name in left:
        loop.turns.repeat(name, lambda name=name: step(name))  # type: ignore[misc]
    while loop.ready:
        loop.turn()

    assert loop.done == ["a", "b", "a", "b", "a"]
    assert len(loop.turns) == 0


def test_work_that_replaces_objects_leaves_few_new_ones_to_the_garbage_collector() -> None:
    loop = FakeLoop()
    objects: deque[list[object]] = deque([[]] for _ in range(40_000))

    def replace_some() -> None:
        loop._work("replaced")
        for _ in range(200):
            objects.popleft()
            objects.append([[]])

    for _ in range(200):
        loop.turns.add("one", replace_some)
    while loop.turn():
        assert sum(len(gc.get_objects(generation=age)) for age in (0, 1)) < 20_000

    assert len(loop.done) == 200


def test_repeated_steps_leave_no_reference_cycles() -> None:
    class Steps:
        left = 3

        def step(self) -> bool:
            self.left -= 1
            return not self.left

    loop = FakeLoop()
    steps = Steps()
    remains = weakref.ref(steps)
    loop.turns.repeat("one", steps.step)
    del steps
    gc.disable()
    try:
        while loop.ready:
            loop.turn()
        assert remains() is None
    finally:
        gc.enable()
