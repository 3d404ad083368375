"""Tries every order of events of a `registry_model.Model`, up to its bounds."""

from __future__ import annotations

import pickle
from time import monotonic
from typing import Any, NamedTuple

from tests.support.registry_model import Bounds, Connection, Model, Violation


class Explored(NamedTuple):
    """How many different worlds were seen; and the first violation, with the events that lead to it."""

    states: int
    violation: str = ""
    events: tuple[tuple[str, Any], ...] = ()
    is_complete: bool = True


def explore(
    model_type: type[Model],
    connections: tuple[Connection, ...],
    bounds: Bounds,
    *,
    states_max: int = 10_000_000,
    seconds_max: float = 3600.0,
) -> Explored:
    """Try everything, depth first."""
    started = monotonic()
    model = model_type(connections, bounds)
    seen: set[int] = set()
    stack: list[tuple[bytes, tuple[Any, ...] | None, Any]] = [(_packed(model), None, None)]
    while stack:
        packed, path, event = stack.pop()
        model = pickle.loads(packed)
        path = (path, event)
        if event is not None:
            try:
                model.step(event)
            except Violation as violation:
                return Explored(len(seen), str(violation), _events(path), is_complete=False)
            _forget_figures(model)
            packed = _packed(model)
            number = hash(packed)
            if number in seen:
                continue
            seen.add(number)
            if len(seen) >= states_max or (len(seen) % 1000 == 0 and monotonic() > started + seconds_max):
                return Explored(len(seen), is_complete=False)
        stack.extend((packed, path, each) for each in model.events())
    return Explored(len(seen))


def _packed(model: Model) -> bytes:
    return pickle.dumps(model, protocol=5)


def _forget_figures(model: Model) -> None:
    """Two worlds that differ in their metrics only are the same."""
    home = model.home
    home.outcomes.clear()
    home.restarts = home.probes = home.given_up = 0


def _events(path: tuple[Any, ...] | None) -> tuple[tuple[str, Any], ...]:
    found = []
    while path is not None and path[1] is not None:
        found.append(path[1])
        path = path[0]
    return tuple(reversed(found))
