"""Deadlines are called once, never early, and at most a tick late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.connection.deadlines import TICK_S, Wheel


class Item:
    """Notes when it is looked at; asks to be looked at again if told so."""

    def __init__(self, again_after: float = 0.0) -> None:
        self.wheel_slot = -1
        self.looks: list[float] = []
        self.again_after = again_after
        self.on_look: list[object] = []

    def check_deadline(self, now: float) -> float:
        self.looks.append(now)
        for action in self.on_look:
            action()  # type: ignore[operator]
        return now + self.again_after if self.again_after else 0.0


def run(wheel: Wheel, start: float, stop: float) -> None:
    now = start
    while now < stop:
        now += TICK_S
        wheel.turn(now)


@given(start=st.floats(0, 1e6), delays=st.lists(st.floats(-5, 60), min_size=1, max_size=20))
def test_every_deadline_is_met_within_a_tick(start: float, delays: list[float]) -> None:
    wheel = Wheel(start)
    items = [(Item(), start + delay) for delay in delays]
    for item, when in items:
        wheel.watch(item, when)

    run(wheel, start, start + 70)

    for item, when in items:
        (looked,) = item.looks
        assert looked >= when
        # The clock is read once a tick, and the tick may be anywhere within the deadline's half second.
        assert looked <= max(when, start) + 2 * TICK_S
        assert item.wheel_slot == -1


def test_a_moved_deadline_is_called_at_its_new_time_only() -> None:
    wheel, item = Wheel(0.0), Item()
    wheel.watch(item, 1.0)
    wheel.watch(item, 5.0)

    run(wheel, 0.0, 10.0)

    assert len(item.looks) == 1
    assert item.looks[0] >= 5.0


def test_a_forgotten_deadline_is_never_called() -> None:
    wheel, item = Wheel(0.0), Item()
    wheel.watch(item, 1.0)
    wheel.forget(item)
    wheel.forget(item)

    run(wheel, 0.0, 5.0)

    assert item.looks == []


def test_an_item_that_returns_a_new_deadline_is_checked_again() -> None:
    wheel, item = Wheel(0.0), Item(again_after=2.0)
    wheel.watch(item, 1.0)

    run(wheel, 0.0, 20.0)

    gaps = [later - earlier for earlier, later in zip(item.looks, item.looks[1:], strict=False)]
    assert len(item.looks) >= 6
    assert all(2.0 <= gap <= 3.0 for gap in gaps)


def test_an_item_forgotten_by_its_neighbour_is_not_checked() -> None:
    wheel = Wheel(0.0)
    first, second = Item(), Item()
    first.on_look = [lambda: wheel.forget(second)]
    second.on_look = [lambda: wheel.forget(first)]
    wheel.watch(first, 1.0)
    wheel.watch(second, 1.0)

    run(wheel, 0.0, 5.0)

    assert len(first.looks) + len(second.looks) == 1


def test_an_item_moved_by_its_neighbour_is_checked_once_at_the_new_time() -> None:
    wheel = Wheel(0.0)
    first, second = Item(), Item()
    first.on_look = [lambda: None if second.looks else wheel.watch(second, 4.0)]
    second.on_look = [lambda: None if first.looks else wheel.watch(first, 4.0)]
    wheel.watch(first, 1.0)
    wheel.watch(second, 1.0)

    run(wheel, 0.0, 10.0)

    assert len(first.looks) == len(second.looks) == 1
    assert max(first.looks + second.looks) >= 4.0


def test_a_clock_that_jumps_calls_everything_that_is_due() -> None:
    wheel = Wheel(0.0)
    items = [Item() for _ in range(10)]
    for i, item in enumerate(items):
        wheel.watch(item, float(i))

    wheel.turn(1000.0)

    assert all(item.looks == [1000.0] for item in items)
