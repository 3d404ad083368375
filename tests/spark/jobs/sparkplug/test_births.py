"""What an alias means at a place: the state machine of births and deaths, against a search backwards through all of history."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from braidmq.spark.jobs.sparkplug.births import Birth, Death, EdgeNode, Metric, Place, distinct, follow

DEVICES = [None, "d1", "d2"]
ALIASES = range(3)
Event = Birth | Death


def place_of(event: Event) -> Place:
    return event.since if isinstance(event, Birth) else event.at


def birth(at: int, device: str | None = None, bd_seq: int | None = None, **aliases: int) -> Birth:
    metrics = tuple(Metric(name, alias, "Int32") for name, alias in aliases.items())
    return Birth(device=device, since=(at, 0), metrics=metrics, bd_seq=bd_seq)


def death(at: int, device: str | None = None, bd_seq: int | None = None) -> Death:
    return Death(device=device, at=(at, 0), bd_seq=bd_seq)


def said(births: Sequence[Birth], at: int, device: str | None, alias: int) -> str | None:
    """The name that births give, as a join of them with a message finds it."""
    place = (at, 0)
    holding = [
        each for each in births if each.device == device and each.since < place and (each.until is None or place <= each.until)
    ]
    assert len(holding) <= 1, "a message would become two rows"
    return next((each.name for each in (holding[0].metrics if holding else ()) if each.alias == alias), None)


def node_before(events: Sequence[Event], at: int) -> Birth | None:
    """The NBIRTH whose session it is at a place."""
    for event in reversed([each for each in events if place_of(each) < (at, 0) and each.device is None]):
        if isinstance(event, Birth):
            return event
        if counts(events, event):
            return None
    return None


def counts(events: Sequence[Event], event: Death) -> bool:
    """Whether an NDEATH is about the session that it finds."""
    node = node_before(events, event.at[0])
    return node is None or None in (node.bd_seq, event.bd_seq) or node.bd_seq == event.bd_seq


def meant(events: Sequence[Event], at: int, device: str | None, alias: int) -> str | None:
    """The name by the rules: look backwards for what decides it."""
    for event in reversed([each for each in events if place_of(each) < (at, 0)]):
        if isinstance(event, Birth) and event.device == device:
            return next((each.name for each in event.metrics if each.alias == alias), None)
        is_over = counts(events, event) if isinstance(event, Death) and event.device is None else event.device in (None, device)
        if is_over:
            return None
    return None


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Births and deaths of an edge node in order, at even positions; each birth has names of its own."""
    events: list[Event] = []
    for number in range(draw(st.integers(0, 12))):
        at, device = 10 + 2 * number, draw(st.sampled_from(DEVICES))
        bd_seq = draw(st.sampled_from([None, 0, 1]))  # it means nothing for a device
        if draw(st.booleans()):
            aliases = draw(st.sets(st.sampled_from(ALIASES)))
            events.append(birth(at, device, bd_seq, **{f"m{alias}@{at}": alias for alias in aliases}))
        else:
            events.append(death(at, device, bd_seq))
    return events


@given(histories(), st.lists(st.integers(0, 12), max_size=4))
def test_every_alias_has_the_name_of_the_birth_before_it_however_history_is_cut_into_batches(
    events: list[Event], cuts: list[int]
) -> None:
    edges = sorted({0, *(min(each, len(events)) for each in cuts), len(events)})
    alive: list[Birth] = []
    for first, last in pairwise(edges):
        births = follow(alive, events[first:last])
        # Messages of this batch: before its first event, between them, and after its last one.
        for at, device, alias in product(range(9 + 2 * first, 10 + 2 * last, 2), DEVICES, ALIASES):
            assert said(births, at, device, alias) == meant(events, at, device, alias)
        alive = [each for each in births if each.until is None]
        assert len(alive) == len({each.device for each in alive})


@given(histories(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_events_that_come_late_give_no_name_of_a_later_birth_and_no_message_twice(
    events: list[Event], random: Random, batches: int
) -> None:
    shuffled = list(events)
    random.shuffle(shuffled)
    alive: list[Birth] = []
    for batch in range(batches):
        births = follow(alive, shuffled[batch::batches])
        for at, device, alias in product(range(9, 40, 2), DEVICES, ALIASES):
            name = said(births, at, device, alias)
            assert name is None or int(name.partition("@")[2]) < at
        now = [each for each in births if each.until is None]
        before = {each.device: each.since for each in alive}
        assert all(each.since >= before.get(each.device, each.since) for each in now)
        alive = now


def test_the_birth_of_a_node_invalidates_those_of_its_devices() -> None:
    births = follow([], [birth(1, None, 0, n=0), birth(2, "d1", a=1), birth(5, None, 0, n=0)])

    assert said(births, 4, "d1", 1) == "a"
    assert said(births, 6, "d1", 1) is None
    assert said(births, 6, None, 0) == "n"


def test_the_will_of_an_earlier_connection_ends_nothing() -> None:
    alive = [birth(10, None, 7, n=0), birth(11, "d1", a=1)]

    late = EdgeNode(alive).died(death(12, bd_seq=6))
    own = EdgeNode(alive).died(death(12, bd_seq=7))

    assert late == []
    assert {each.device: each.until for each in own} == {None: (12, 0), "d1": (12, 0)}


def test_an_alias_used_by_two_devices_has_one_meaning_for_each() -> None:
    births = follow([], [birth(1, "d1", a=1), birth(2, "d2", b=1)])

    assert (said(births, 3, "d1", 1), said(births, 3, "d2", 1), said(births, 3, None, 1)) == ("a", "b", None)


def test_a_name_or_an_alias_that_a_birth_has_twice_counts_as_it_came_last() -> None:
    found = distinct([Metric("a", 1, "Int8"), Metric("b", 1, "Int16"), Metric("c", None, "Int32"), Metric("a", 1, "Int64")])

    assert set(found) == {Metric("b", None, "Int16"), Metric("c", None, "Int32"), Metric("a", 1, "Int64")}


@given(st.lists(st.builds(Metric, st.sampled_from("abc"), st.sampled_from([None, 1, 2]), st.sampled_from(["Int8", "Float"]))))
def test_no_birth_has_a_key_twice_and_no_name_is_lost(metrics: list[Metric]) -> None:
    found = distinct(metrics)

    aliases = [each.alias for each in found if each.alias is not None]
    assert len(aliases) == len(set(aliases))
    assert sorted(each.name for each in found) == sorted({each.name for each in metrics})
    # Whoever said an alias last, among what each name was said to be last, has it.
    last = {each.name: (place, each) for place, each in enumerate(metrics)}
    for alias in (1, 2):
        claims = [(place, each) for place, each in last.values() if each.alias == alias]
        holders = [each.name for each in found if each.alias == alias]
        assert holders == ([max(claims, key=lambda claim: claim[0])[1].name] if claims else [])
