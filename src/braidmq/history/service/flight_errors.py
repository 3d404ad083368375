"""Maps problems to Flight errors: clients in any language can tell the classes apart; details are in `extra_info`."""

from __future__ import annotations

from typing import Final

import pyarrow.flight as flight

from braidmq.flight.wire import Code, Problem, encode

_CLASSES: Final[dict[Code, type[flight.FlightError]]] = {
    "bad-request": flight.FlightServerError,
    "unauthenticated": flight.FlightUnauthenticatedError,
    "forbidden": flight.FlightUnauthorizedError,
    "data-loss": flight.FlightServerError,
    "other-log": flight.FlightServerError,
    "unavailable": flight.FlightUnavailableError,
    "busy": flight.FlightUnavailableError,
}


def to_flight(problem: Problem) -> flight.FlightError:
    """The error to raise in a call."""
    return _CLASSES[problem.code](problem.detail, encode(problem))
