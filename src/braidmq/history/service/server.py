"""The Flight server: calls in, record batches out. `Authorization` checks permissions, the view reads the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from braidmq.base.errors import BraidError, UsageError
from braidmq.flight import wire
from braidmq.flight.columns import choose
from braidmq.history import messages
from braidmq.history.scanning.batches import cut
from braidmq.history.service.authorization import MIDDLEWARE, Authorization, Caller, ShownFactory
from braidmq.history.service.errors import HistoryError
from braidmq.history.service.flight_errors import to_flight
from braidmq.history.service.node_link import NodeLink
from braidmq.history.service.quotas import Quotas
from braidmq.history.service.read_ahead import read_ahead
from braidmq.history.view.core_requests import OwnShards, encode_problem

log = logging.getLogger("braidmq.history")

_ACTIONS: Final = {
    wire.SHARDS: "The shards of the log and the range of each.",
    wire.ADVANCE: "The end of a batch of limited size.",
    wire.NOTE_READER: "Store the position of a named reader.",
    wire.BACKLOG: "The number of records in a range that match some filters.",
}
# Bytes sent at a time while the node is busy. Priorities have no effect inside a system call: one that sends megabytes occupies
# its processor for milliseconds, whichever thread waits for it.
_PIECE_BYTES: Final = 128 * 1024
# The pause after each piece. The scheduler moves waiting threads of the node to a processor that becomes idle; a processor that
# is never idle, even with work of the lowest priority, does not take them.
_REST_S: Final = 0.0005
# How often a stream checks that its reader still has access, and whether the node is busy. A stream may run for hours.
_ASK_EVERY_S: Final = 1.0
# Maximum number of pairs examined for all named readers together when the node asks for their lag; about 0.2 s.
_BACKLOG_STEPS: Final = 262_144


class View(Protocol):
    """What the server needs from the log. Called from many threads; may block."""

    def on_watermarks(self, watermarks: dict[int, int]) -> None:
        """Take the current watermark of each shard."""

    def shards(self) -> wire.Shards:
        """The range of each shard."""

    def plan(self, plan: wire.Plan) -> tuple[wire.Planned, list[tuple[wire.Ticket, wire.Part]]]:
        """The parts of a read."""

    def advance(self, advance: wire.Advance) -> wire.Advanced:
        """How far a batch may go."""

    def backlog(self, wanted: wire.AskBacklog, steps_max: int = ...) -> wire.Backlog:
        """How many records are in a range; `steps_max` limits the work."""

    def scan(self, ticket: wire.Ticket) -> Generator[pa.RecordBatch, None, None]:
        """The rows of a part."""


@contextmanager
def problems_in_words() -> Iterator[None]:
    """Translate our errors into Flight's; other exceptions are logged here and not shown to the client."""
    try:
        yield
    except HistoryError as error:
        raise to_flight(error.problem) from None
    except UsageError as error:
        raise to_flight(wire.Problem("bad-request", str(error))) from None
    except BraidError as error:
        log.error("a read of the history failed: %s", error)
        raise to_flight(wire.Problem("unavailable", str(error))) from None
    except flight.FlightError:
        raise
    except Exception:
        log.exception("a call to the history service failed")
        raise flight.FlightInternalError("the history service failed internally; see the node's log") from None


class HistoryServer(flight.FlightServerBase):  # type: ignore[misc] # pyarrow has no types
    """Serves a view of the log. The constructor starts listening."""

    def __init__(
        self,
        setup: messages.Setup,
        node: NodeLink,
        view: View,
        rest: Callable[[float], None] = time.sleep,
        own: OwnShards | None = None,
    ) -> None:
        """``own``: the shards that this core leads, if there are other cores."""
        self._node = node
        self._rest = rest
        self._view = view
        self._own = own
        self._authorization = Authorization(node)
        self.quotas = Quotas(setup.limits)
        self._is_node_busy = False
        super().__init__(
            f"{'grpc+tls' if setup.tls else 'grpc'}://{_host(setup.host)}:{setup.port}",
            auth_handler=_Handshakes(),
            middleware={MIDDLEWARE: ShownFactory(self._authorization)},
            **_tls(setup),
        )

    def is_known(self, host: str, port: int) -> bool:
        """Whether a call from this address was let in."""
        return self._authorization.is_known(host, port)

    @problems_in_words()
    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """All of history as one flight, for callers that may read it."""
        caller = self._authorization.enter(context)
        self._authorization.check(caller, ["#"])
        return iter([self._planned(wire.Plan(["#"]), flight.FlightDescriptor.for_path("#"))])

    @problems_in_words()
    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """The schema of a read."""
        self._authorization.enter(context)
        return flight.SchemaResult(choose(_plan_in(descriptor).columns))

    @problems_in_words()
    def get_flight_info(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """Plan a read."""
        plan = _plan_in(descriptor)
        self._authorization.check(self._authorization.enter(context), plan.filters)
        return self._planned(plan, descriptor)

    def _planned(self, plan: wire.Plan, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        schema = choose(plan.columns)
        self._refresh()
        planned, parts = self._view.plan(plan)
        return flight.FlightInfo(
            schema,
            descriptor,
            [flight.FlightEndpoint(wire.encode(ticket), _locations(ticket), None, wire.encode(part)) for ticket, part in parts],
            sum(part.rows_max for _, part in parts),
            sum(part.bytes_max for _, part in parts),
            app_metadata=wire.encode(planned),
        )

    @problems_in_words()
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Stream a part of a plan."""
        wanted = wire.decode(ticket.ticket, wire.Ticket)
        _check_version(wanted.version)
        caller = self._authorization.enter(context)
        # A ticket proves nothing: permissions are checked again, and may have changed since the plan.
        self._authorization.check(caller, wanted.filters)
        schema = choose(wanted.columns)
        self._refresh()
        return flight.GeneratorStream(schema, self._batches(caller, wanted))

    def _batches(self, caller: Caller, ticket: wire.Ticket) -> Iterator[pa.RecordBatch]:
        with problems_in_words():
            self.quotas.begin(caller.key)
            try:
                with closing(read_ahead(self._view.scan(ticket))) as batches:
                    asked_at = time.monotonic()
                    for batch in batches:
                        if time.monotonic() - asked_at >= _ASK_EVERY_S:
                            self._authorization.check_again(caller, ticket.filters)
                            self._refresh()
                            asked_at = time.monotonic()
                        self.quotas.sent(caller.key, batch.num_rows, batch.nbytes)
                        yield from self._gently(batch) if self._is_node_busy else (batch,)
            finally:
                self.quotas.end(caller.key)

    def _gently(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for piece in cut(batch, _PIECE_BYTES):
            yield piece
            self._rest(_REST_S)

    def list_actions(self, context: flight.ServerCallContext) -> list[flight.ActionType]:
        """The actions available besides reads."""
        return [flight.ActionType(name, meaning) for name, meaning in _ACTIONS.items()]

    @problems_in_words()
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        """Answer one of `list_actions`."""
        caller = self._authorization.enter(context)
        return iter([flight.Result(wire.encode(self._answer(caller, action.type, action.body.to_pybytes())))])

    def _answer(self, caller: Caller, name: str, body: bytes) -> msgspec.Struct:
        match name:
            case wire.SHARDS:
                self._refresh()
                return self._view.shards()
            case wire.ADVANCE:
                advance = wire.decode(body, wire.Advance)
                _check_version(advance.version)
                self._authorization.check(caller, advance.filters)
                self._refresh()
                return self._view.advance(advance)
            case wire.NOTE_READER:
                note = wire.decode(body, wire.NoteReader)
                _check_version(note.version)
                self._authorization.check(caller, note.filters)
                positions = wire.from_wire(note.positions)
                self._node.ask(messages.SaveReader(note.name, caller.user_name, positions, note.filters), messages.Noted)
                return wire.Nothing()
            case wire.BACKLOG:
                backlog = wire.decode(body, wire.AskBacklog)
                _check_version(backlog.version)
                self._authorization.check(caller, backlog.filters)
                self._refresh()
                return self._view.backlog(backlog)
            case _:
                raise UsageError(f"unknown action {name!r}", f"use one of {', '.join(_ACTIONS)}")

    def backlogs(self, readers: Sequence[messages.ReaderAt]) -> list[messages.Behind]:
        """How many records each of these named readers has yet to read; asked by the node."""
        self._refresh()
        steps_max = max(_BACKLOG_STEPS // max(len(readers), 1), 1)
        view: View = self._view if self._own is None else self._own.view
        found = []
        for each in readers:
            backlog = view.backlog(wire.AskBacklog(each.filters, wire.to_wire(each.positions)), steps_max)
            found.append(messages.Behind(backlog.rows, backlog.is_estimate))
        return found

    def answer_core(self, request: bytes) -> bytes:
        """The answer to another core, about the shards that this one leads."""
        assert self._own is not None, "there are no other cores"
        try:
            self._refresh()
        except HistoryError as error:
            return encode_problem(error.problem)
        return self._own.answer_bytes(request)

    def _refresh(self) -> None:
        """Make everything committed before this call visible to it."""
        watermarks = self._node.ask(messages.AskWatermarks(), messages.Watermarks)
        self._is_node_busy = watermarks.is_busy
        self._view.on_watermarks(watermarks.positions)


class _Handshakes(flight.ServerAuthHandler):  # type: ignore[misc] # pyarrow has no types
    """Passes the handshake of a user and password on to the middleware, which checks the headers and answers."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """Exchange nothing."""

    def is_valid(self, token: bytes) -> bytes:
        """Accept every token: calls are authenticated by their headers."""
        return b""


def _plan_in(descriptor: flight.FlightDescriptor) -> wire.Plan:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return wire.Plan([each.decode() for each in descriptor.path])
    plan = wire.decode(descriptor.command, wire.Plan)
    _check_version(plan.version)
    return plan


def _check_version(version: int) -> None:
    if version > wire.VERSION:
        raise UsageError(
            f"the client uses version {version} of the protocol, the service version {wire.VERSION}", "use an older client"
        )


def _locations(ticket: wire.Ticket) -> list[str]:
    """Where a part is read; empty: at the service that has planned it."""
    return [ticket.location] if ticket.location else []


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host or "0.0.0.0"


def _tls(setup: messages.Setup) -> dict[str, Any]:
    if setup.tls is None:
        return {}
    options: dict[str, Any] = {"tls_certificates": [(setup.tls.certificate, setup.tls.key)]}
    if setup.tls.authorities:
        options |= {"verify_client": True, "root_certificates": setup.tls.authorities}
    return options
