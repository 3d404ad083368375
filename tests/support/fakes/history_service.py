"""A history service that answers from memory, by the wire contract and with nothing of the node: what clients are tested against.

It takes the liberties that the contract leaves: topics come in another order each time a ticket is read, and batches are small.
"""

from __future__ import annotations

import base64
import itertools
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

from braidmq.base.errors import ProtocolViolation, UsageError
from braidmq.flight import columns, wire
from braidmq.mqtt.topics import check_filter, matches

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
# The position of the first record: 2023-11-14T22:13:20Z.
BEGINNING = 1_700_000_000_000_000

_ERRORS = {
    "bad-request": flight.FlightServerError,
    "data-loss": flight.FlightServerError,
    "other-log": flight.FlightServerError,
    "unauthenticated": flight.FlightUnauthenticatedError,
    "forbidden": flight.FlightUnauthorizedError,
    "unavailable": flight.FlightUnavailableError,
    "busy": flight.FlightUnavailableError,
}


def problem(code: wire.Code, detail: str, gaps: dict[str, wire.ShardGap] | None = None) -> flight.FlightError:
    """The error by which Flight carries a problem."""
    return _ERRORS[code](detail, wire.encode(wire.Problem(code, detail, gaps or {})))


class _Headers(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, headers: Mapping[str, Sequence[str]]) -> None:
        self.headers = headers


class _HeadersFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Headers:
        return _Headers(headers)


class FakeHistoryService(flight.FlightServerBase):  # type: ignore[misc]
    """Serves from when it is made until `stop`. What tests set: `users`, `log`, `broken_after`; what they look at: the rest."""

    def __init__(self, shards: int = 2, log: str = "00ff", *, port: int = 0, batch_rows: int = 3, **tls: Any) -> None:
        scheme = "grpc+tls" if tls else "grpc"
        super().__init__(f"{scheme}://127.0.0.1:{port}", middleware={"headers": _HeadersFactory()}, **tls)
        self.log = log
        self.users: dict[str, str] = {}  # without any, everybody may read
        self.tokens: set[str] = set()
        self.hidden: set[str] = set()  # filters that nobody may read
        self.batch_rows = batch_rows
        # Each entry breaks one stream: after so many rows.
        self.broken_after: list[int] = []
        self.unavailable = 0  # so many calls are answered with `unavailable`
        self.busy = 0  # so many streams are refused
        self.readers: dict[str, wire.Positions] = {}
        self.reader_names: set[str] = set()
        self.plans: list[wire.Plan] = []
        self.advances: list[wire.Advance] = []
        self.backlogs: list[wire.AskBacklog] = []
        self.calls: list[str] = []  # actions, by name
        self.is_estimating = False
        self.knows_backlogs = True
        self.reader_filters: dict[str, list[str]] = {}
        self.tickets: list[wire.Ticket] = []
        self.latest: dict[int, int] = dict.fromkeys(range(shards), 0)
        self.floors: dict[int, int] = dict.fromkeys(range(shards), 0)
        self._rows: dict[int, list[Row]] = {shard: [] for shard in range(shards)}
        self._lock = threading.RLock()
        self._clock = BEGINNING
        self._streams = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self, topic: str, payload: bytes = b"", *, shard: int | None = None, at: int | None = None, **others: Any) -> Row:
        """Record a message, by default a second after the one before."""
        with self._lock:
            self._clock = at if at is not None else self._clock + 1_000_000
            home = zlib.crc32(topic.encode()) % len(self._rows) if shard is None else shard
            assert self._clock > self.latest[home], "positions rise"
            moment = EPOCH + timedelta(microseconds=self._clock)
            row: Row = dict.fromkeys(columns.SCHEMA.names) | {
                "topic": topic,
                "payload": payload,
                "qos": 1,
                "retain": False,
                "client_id": "publisher",
                "publish_timestamp": moment,
                "store_timestamp": moment,
                "shard": home,
                "position": self._clock,
            }
            row |= others
            self._rows[home].append(row)
            self.latest[home] = self._clock
            return row

    def add_many(self, topic: str, number: int, **others: Any) -> list[Row]:
        """Record messages whose payloads are the numbers from 0 on."""
        return [self.add(topic, str(index).encode(), **others) for index in range(number)]

    def add_shard(self) -> int:
        """One more, without records."""
        with self._lock:
            shard = len(self._rows)
            self._rows[shard], self.latest[shard], self.floors[shard] = [], 0, 0
            return shard

    def expire(self, floor: int) -> None:
        """Retention takes everything up to and with this position."""
        with self._lock:
            for shard in self._rows:
                self.floors[shard] = floor
                self.latest[shard] = max(self.latest[shard], floor)
                self._rows[shard] = [row for row in self._rows[shard] if row["position"] > floor]

    def rows(self, *filters: str) -> list[Row]:
        """What there is, in order of time."""
        wanted = filters or ("#",)
        found = [row for shard in self._rows.values() for row in shard if any(matches(each, row["topic"]) for each in wanted)]
        return sorted(found, key=lambda row: row["position"])

    def stop(self) -> None:
        """End it, and every stream it serves."""
        self.shutdown()
        self.wait()

    def __enter__(self) -> FakeHistoryService:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def get_flight_info(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        plan = self._decode(descriptor.command, wire.Plan)
        with self._lock:
            self.plans.append(plan)
            self._enter(context, plan.filters)
            schema = self._schema(plan.columns)
            start, end = self._resolve(plan.start, 0), self._resolve(plan.end, None)
            gaps = self._gaps(start, end, plan.on_loss)
            self._reach(end)
            start = {shard: max(position, self.floors[shard]) for shard, position in start.items()}
            end = {shard: max(position, start[shard]) for shard, position in end.items()}
            endpoints = [
                flight.FlightEndpoint(wire.encode(ticket), [], None, wire.encode(part))
                for shard in self._rows
                for ticket, part in self._parts(plan, shard, start[shard], end[shard])
            ]
            planned = wire.Planned(self.log, wire.to_wire(start), wire.to_wire(end), gaps)
        return flight.FlightInfo(schema, descriptor, endpoints, -1, -1, app_metadata=wire.encode(planned))

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        wanted = self._decode(ticket.ticket, wire.Ticket)
        with self._lock:
            self.tickets.append(wanted)
            self._enter(context, wanted.filters)
            if self.busy:
                self.busy -= 1
                raise problem("busy", "all streams are taken")
            if wanted.log != self.log:
                raise problem("other-log", f"the ticket is of the log {wanted.log}, this is {self.log}")
            self._gaps({wanted.shard: wanted.start}, {wanted.shard: wanted.end}, wanted.on_loss)
            schema = self._schema(wanted.columns)
            rows = self._in_some_order(self._range(wanted.shard, wanted.filters, wanted.start, wanted.end))
            broken_after = self.broken_after.pop(0) if self.broken_after else None
        return flight.GeneratorStream(schema, self._batches(rows, schema, broken_after))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[flight.Result]:
        body = action.body.to_pybytes()
        with self._lock:
            self.calls.append(action.type)
            answer: msgspec.Struct
            if action.type == wire.ADVANCE:
                advance = self._decode(body, wire.Advance)
                self.advances.append(advance)
                self._enter(context, advance.filters)
                answer = self._advance(advance)
            else:
                self._enter(context, ["#"])
                answer = self._act(action.type, body)
        return iter([flight.Result(wire.encode(answer))])

    def _act(self, name: str, body: bytes) -> msgspec.Struct:
        if name == wire.NOTE_READER:
            note = self._decode(body, wire.NoteReader)
            self.readers[note.name] = note.positions
            self.reader_filters[note.name] = note.filters
            return wire.Nothing()
        if name == wire.BACKLOG and self.knows_backlogs:
            return self._backlog(self._decode(body, wire.AskBacklog))
        if name != wire.SHARDS:
            raise problem("bad-request", f"unknown action {name!r}")
        states = {
            str(shard): wire.ShardState(self.floors[shard], self.latest[shard], len(rows), 100 * len(rows))
            for shard, rows in self._rows.items()
        }
        return wire.Shards(self.log, self._clock, states)

    def _backlog(self, asked: wire.AskBacklog) -> wire.Backlog:
        self.backlogs.append(asked)
        start = self._resolve(wire.RangeBound(positions=asked.start), 0)
        end = self._resolve(wire.RangeBound(positions=asked.end or {}), None)
        rows = sum(len(self._range(shard, asked.filters, start[shard], end[shard])) for shard in self._rows)
        return wire.Backlog(rows, self.is_estimating)

    def _advance(self, advance: wire.Advance) -> wire.Advanced:
        """Record after record in order of time, which gives each shard its share."""
        start = self._resolve(wire.RangeBound(positions=advance.start), 0)
        bounds = self._resolve(wire.RangeBound(positions=advance.end or {}), None)
        self._gaps(start, bounds, advance.on_loss)
        self._reach(bounds)
        pending = sorted(
            (row["position"], shard, len(row["payload"]))
            for shard in self._rows
            for row in self._range(shard, advance.filters, start[shard], bounds[shard])
        )
        end, rows, size = dict(start), 0, 0
        for position, shard, bytes_more in pending:
            is_full = rows == advance.rows_max or (advance.bytes_max is not None and size + bytes_more > advance.bytes_max)
            if rows and is_full:
                break
            end[shard], rows, size = position, rows + 1, size + bytes_more
        else:
            end = {shard: max(bounds[shard], start[shard]) for shard in start}
        return wire.Advanced(wire.to_wire(end), rows, wire.to_wire(self.latest))

    def _parts(self, plan: wire.Plan, shard: int, start: int, end: int) -> Iterator[tuple[wire.Ticket, wire.Part]]:
        rows = self._range(shard, plan.filters, start, end)
        busy = sum(bool(self._range(each, plan.filters, start, end)) for each in self._rows)
        number = min(-(-plan.partitions // max(busy, 1)), len(rows)) or 1
        if plan.part_rows_max is not None:
            number = max(number, -(-len(rows) // plan.part_rows_max))
        cuts = [start, *(rows[len(rows) * at // number - 1]["position"] for at in range(1, number)), end]
        for after, until in itertools.pairwise(cuts):
            count = sum(after < row["position"] <= until for row in rows)
            if count:
                ticket = wire.Ticket(self.log, plan.filters, shard, after, until, plan.columns, plan.on_loss)
                yield ticket, wire.Part(shard, count, 100 * count)

    def _range(self, shard: int, filters: Sequence[str], start: int, end: int) -> list[Row]:
        rows = [row for row in self._rows[shard] if start < row["position"] <= end]
        return [row for row in rows if any(matches(each, row["topic"]) for each in filters)]

    def _resolve(self, place: wire.RangeBound, default: int | None) -> dict[int, int]:
        if place.positions is not None:
            named = wire.from_wire(place.positions)
            return {shard: named.get(shard, latest if default is None else default) for shard, latest in self.latest.items()}
        if place.time is not None:
            before = max(place.time - 1, 0)
            return {shard: before if default == 0 else min(before, latest) for shard, latest in self.latest.items()}
        return dict(self.latest) if place.at == "latest" else dict.fromkeys(self._rows, 0)

    def _reach(self, end: Mapping[int, int]) -> None:
        """A range beyond what is there is of a service that has not caught up."""
        if any(position > self.latest[shard] for shard, position in end.items()):
            raise problem("unavailable", "the history service has not caught up with the end of this range yet")

    def _gaps(self, start: Mapping[int, int], end: Mapping[int, int], on_loss: wire.OnLoss) -> dict[str, wire.ShardGap]:
        gaps = {
            str(shard): wire.ShardGap(position, self.floors[shard] + 1)
            for shard, position in start.items()
            if 0 < position < min(self.floors[shard], end[shard])
        }
        if gaps and on_loss == "fail":
            raise problem("data-loss", "retention was faster", gaps)
        return gaps

    def _in_some_order(self, rows: list[Row]) -> list[Row]:
        self._streams += 1
        by_topic: dict[str, list[Row]] = {}
        for row in rows:
            by_topic.setdefault(row["topic"], []).append(row)
        topics = sorted(by_topic, reverse=self._streams % 2 == 0)
        return [row for topic in topics for row in by_topic[topic]]

    def _batches(self, rows: list[Row], schema: pa.Schema, broken_after: int | None) -> Iterator[pa.RecordBatch]:
        for at in range(0, len(rows), self.batch_rows):
            some = rows[at : at + self.batch_rows]
            if broken_after is not None and at + len(some) > broken_after:
                raise flight.FlightUnavailableError("the connection is lost")
            yield pa.RecordBatch.from_pylist(some, schema=schema)

    def _schema(self, names: list[str] | None) -> pa.Schema:
        try:
            return columns.choose(names)
        except UsageError as error:
            raise problem("bad-request", str(error)) from None

    def _enter(self, context: flight.ServerCallContext, filters: list[str]) -> None:
        if self.unavailable:
            self.unavailable -= 1
            raise problem("unavailable", "the view is not there yet")
        headers = context.get_middleware("headers").headers
        self.reader_names.update(headers.get("x-braidmq-reader", ()))
        scheme, _, shown = next(iter(headers.get("authorization", ("",)))).partition(" ")
        pairs = {base64.b64encode(f"{user}:{password}".encode()).decode() for user, password in self.users.items()}
        is_known = shown in (pairs if scheme == "Basic" else self.tokens)
        if (self.users or self.tokens) and not is_known:
            raise problem("unauthenticated", "not authorized")
        if not filters:
            raise problem("bad-request", "a read needs at least one topic filter")
        for each in filters:
            try:
                check_filter(each)
            except ProtocolViolation as violation:
                raise problem("bad-request", f"{each!r} is not a topic filter: {violation.detail}") from None
            if each in self.hidden:
                raise problem("forbidden", f"{each} may not be subscribed to")

    @staticmethod
    def _decode(data: bytes, kind: type[Any]) -> Any:
        try:
            return wire.decode(data, kind)
        except UsageError as error:
            raise problem("bad-request", str(error)) from None
