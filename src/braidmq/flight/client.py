"""The client of the history service. Users call `braidmq.flight.connect(...)`, then `read`.

A call to a server that does not answer is retried with the next one, and with all of them for `retry_s`, with pauses. If a reader
has too many streams open, a new one waits for `busy_s`. A stream that is interrupted resumes without gaps or duplicates. Errors
are UsageError, Unavailable and DataLoss. Blocking; not thread-safe.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from braidmq.base.errors import Unavailable, UsageError
from braidmq.flight import columns as history_columns
from braidmq.flight import wire
from braidmq.flight.access import Access, is_plain, parse_servers
from braidmq.flight.errors import Busy, describe_gaps, from_wire_gaps, translate
from braidmq.flight.resume import Resume
from braidmq.flight.retry import BUSY_S, Retry
from braidmq.flight.times import to_bound

CALL_S: Final = 30.0
RETRY_S: Final = 10.0
# How long one attempt at a stream may take. A slower reader continues with the next attempt; a server that vanishes silently does
# not block a reader for ever.
_STREAM_S: Final = 900.0

T = TypeVar("T")


class Planning(msgspec.Struct, frozen=True):
    """The answer to `plan`: the range, and the parts to stream."""

    planned: wire.Planned
    parts: list[tuple[wire.Ticket, wire.Part]]


class HistoryClient:
    """Reads history from the first of several servers that answers. Closed by `close`, or used as a context manager."""

    def __init__(
        self,
        servers: str | Sequence[str],
        access: Access | None = None,
        *,
        call_s: float = CALL_S,
        retry_s: float = RETRY_S,
        stream_s: float = _STREAM_S,
        busy_s: float = BUSY_S,
    ) -> None:
        self._access = access or Access()
        self._access.check()
        self._locations = parse_servers(servers, tls=self._access.wants_tls)
        self._retry_s = retry_s
        self._busy_s = busy_s
        headers = self._access.headers()
        self._call_options = flight.FlightCallOptions(timeout=call_s, headers=headers)
        self._stream_options = flight.FlightCallOptions(timeout=stream_s, headers=headers)
        # The server that answered last is asked first.
        self._preferred = self._locations[0]
        self._clients: dict[str, flight.FlightClient] = {}

    def shards(self) -> wire.Shards:
        """The log and its shards."""
        return self._act(wire.SHARDS, wire.Nothing(), wire.Shards)

    def plan(self, plan: wire.Plan) -> Planning:
        """Fix a range and divide it into parts. Raises DataLoss if records in it were deleted and `on_loss` is `fail`."""
        descriptor = flight.FlightDescriptor.for_command(wire.encode(plan))
        info = self._call(lambda client: client.get_flight_info(descriptor, self._call_options))
        parts = [
            (wire.decode(each.ticket.ticket, wire.Ticket), wire.decode(each.app_metadata, wire.Part)) for each in info.endpoints
        ]
        return Planning(planned=wire.decode(info.app_metadata, wire.Planned), parts=parts)

    def advance(self, advance: wire.Advance) -> wire.Advanced:
        """The end of a batch with limits."""
        return self._act(wire.ADVANCE, advance, wire.Advanced)

    def backlog(self, backlog: wire.AskBacklog) -> wire.Backlog:
        """How many records in a range match some filters; an estimate if there are many."""
        return self._act(wire.BACKLOG, backlog, wire.Backlog)

    def note_reader(self, name: str, positions: dict[int, int], filters: Sequence[str] = ("#",)) -> None:
        """Report the positions of the named reader that reads these filters to the broker."""
        self._act(wire.NOTE_READER, wire.NoteReader(name, wire.to_wire(positions), list(filters)), wire.Nothing)

    def stream(self, ticket: wire.Ticket) -> Generator[pa.RecordBatch]:
        """The records of a ticket in non-empty batches, each record exactly once even if connections are lost.

        With several cores a ticket says which of them has its records, and where; no other one is asked.
        """
        resuming = Resume(ticket)
        retry = self._retry(self._location_of(ticket))
        while True:
            try:
                with contextlib.closing(self._attempt(retry.location, resuming.ticket)) as batches:
                    for batch in batches:
                        fresh = resuming.unseen(batch)
                        if fresh is not None:
                            retry.progressed()
                            yield fresh
                return
            except Unavailable as problem:
                if not isinstance(problem, Busy):
                    self._hang_up(retry.location)
                if not resuming.can_resume:
                    detail = f"the stream broke off after {resuming.rows} rows, too many to resume: {problem.detail}"
                    raise Unavailable(detail) from None
                with _naming(ticket.core):
                    retry.failed(problem)
                resuming.begin_again()

    def read(
        self,
        filters: str | Sequence[str],
        *,
        since: str | datetime = "earliest",
        until: str | datetime = "latest",
        columns: Sequence[str] | None = None,
        fail_on_data_loss: bool = False,
    ) -> pa.RecordBatchReader:
        """The records that match these topic filters, from `since` up to but excluding `until`; for pandas, Polars, DuckDB.

        Times are datetimes with a time zone, or strings: `-24h`, `2024-03-01T12:00:00Z`, `earliest`, `latest`. If retention has
        deleted part of the range, a warning says so, or DataLoss is raised. Rows of one topic are in order of time; topics are in
        no order.
        """
        clock = self._clock()
        plan = wire.Plan(
            filters=[filters] if isinstance(filters, str) else list(filters),
            start=to_bound(since, clock),
            end=to_bound(until, clock),
            columns=None if columns is None else list(columns),
            on_loss="fail" if fail_on_data_loss else "skip",
        )
        schema = history_columns.choose(plan.columns)
        planning = self.plan(plan)
        if planning.planned.gaps:
            gaps = describe_gaps(from_wire_gaps(planning.planned.gaps))
            warnings.warn(f"retention removed part of the requested records: {gaps}", stacklevel=2)
        batches = (batch for ticket, _ in planning.parts for batch in self.stream(ticket))
        return pa.RecordBatchReader.from_batches(schema, batches)

    def close(self) -> None:
        """Close the connections."""
        for location in list(self._clients):
            self._hang_up(location)

    def __enter__(self) -> HistoryClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HistoryClient({', '.join(self._locations)}; {self._access!r})"

    def _clock(self) -> Callable[[], int]:
        """The server's clock, read once and only if needed."""
        read: list[int] = []

        def now() -> int:
            if not read:
                read.append(self.shards().now)
            return read[0]

        return now

    def _act(self, name: str, body: msgspec.Struct, kind: type[T]) -> T:
        action = flight.Action(name, wire.encode(body))
        results = self._call(lambda client: list(client.do_action(action, self._call_options)))
        if len(results) != 1:
            raise UsageError(f"{name} returned {len(results)} results", "is it a history service of this version?")
        return wire.decode(results[0].body.to_pybytes(), kind)

    def _call(self, call: Callable[[flight.FlightClient], T]) -> T:
        retry = self._retry()
        while True:
            try:
                with _translated():
                    answer = call(self._client(retry.location))
            except Unavailable as problem:
                self._hang_up(retry.location)
                retry.failed(problem)
            else:
                self._note_answer(retry.location)
                return answer

    def _attempt(self, location: str, ticket: wire.Ticket) -> Generator[pa.RecordBatch]:
        with _translated():
            reader = self._client(location).do_get(flight.Ticket(wire.encode(ticket)), self._stream_options)
        is_over = False
        try:
            while True:
                with _translated():
                    try:
                        batch = reader.read_chunk().data
                    except StopIteration:
                        is_over = True
                        return
                if batch is not None:
                    self._note_answer(location)
                    yield batch
        finally:
            if not is_over:
                # A reader that stops early does not need the rest.
                with contextlib.suppress(pa.ArrowException):
                    reader.cancel()

    def _retry(self, only: str = "") -> Retry:
        """``only``: the one server to ask; empty: all that were given."""
        locations, first = ([only], only) if only else (self._locations, self._preferred)
        return Retry(locations, first, self._retry_s, busy_s=self._busy_s)

    def _note_answer(self, location: str) -> None:
        if location in self._locations:
            self._preferred = location

    def _location_of(self, ticket: wire.Ticket) -> str:
        """Where a ticket is read; empty: at any of the servers that were given. Raises UsageError if it cannot be used."""
        if not ticket.location:
            return ""
        [location] = parse_servers([ticket.location])
        if is_plain(location) and not any(map(is_plain, self._locations)):
            # Credentials travel with every call.
            problem = f"core {ticket.core} serves its records at {location}, without TLS"
            raise UsageError(problem, "set history.cert_file and history.key_file on all cores")
        return location

    def _client(self, location: str) -> flight.FlightClient:
        client = self._clients.get(location)
        if client is None:
            client = self._clients[location] = self._access.dial(location)
        return client

    def _hang_up(self, location: str) -> None:
        client = self._clients.pop(location, None)
        if client is not None:
            with contextlib.suppress(pa.ArrowException):
                client.close()


@contextlib.contextmanager
def _naming(core: str) -> Iterator[None]:
    """Add to Unavailable which core is away."""
    try:
        yield
    except Unavailable as problem:
        if not core:
            raise
        raise Unavailable(f"core {core} is away: {problem.detail}; its history.address must be reachable from here") from None


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise translate(error) from None
