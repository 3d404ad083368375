"""Calls to the history service on plain Arrow Flight."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow.flight as flight

from braidmq.flight import wire


def basic(user: str, password: str) -> flight.FlightCallOptions:
    shown = base64.b64encode(f"{user}:{password}".encode())
    return flight.FlightCallOptions(headers=[(b"authorization", b"Basic " + shown)])


def bearer(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])


def plan(*filters: str, **rest: Any) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(wire.encode(wire.Plan(list(filters), **rest)))


def read(client: flight.FlightClient, descriptor: flight.FlightDescriptor, options: Any = None) -> list[str]:
    info = client.get_flight_info(descriptor, options)
    tables = [client.do_get(each.ticket, options).read_all() for each in info.endpoints]
    return [topic for table in tables for topic in table["topic"].to_pylist()]


def problem_of(error: flight.FlightError) -> wire.Problem:
    return wire.decode(error.extra_info, wire.Problem)


def ask(client: flight.FlightClient, name: str, body: Any, options: Any = None) -> bytes:
    [result] = client.do_action(flight.Action(name, wire.encode(body)), options)
    answer: bytes = result.body.to_pybytes()
    return answer
