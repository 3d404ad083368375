"""A log of a few records in memory, for tests of the service around it."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pyarrow as pa

from braidmq.flight import wire
from braidmq.flight.columns import choose
from braidmq.history.service.errors import HistoryError
from braidmq.mqtt.topics import matches

LOG = "00ff"
RECORDS = [(10, "plant/1/temp", b"20"), (20, "plant/2/temp", b"21"), (30, "office/door", b"open")]


class FakeView:
    """One shard with RECORDS, of which those up to the watermark are there."""

    def __init__(self) -> None:
        self.watermark = 0
        self.records = list(RECORDS)
        self.fault: Exception | None = None
        self.rows_at_once = 1
        self.before_row: Callable[[int], object] = lambda position: None

    def on_watermarks(self, watermarks: dict[int, int]) -> None:
        self.watermark = watermarks[0]

    def shards(self) -> wire.Shards:
        return wire.Shards(LOG, 0, {"0": wire.ShardState(0, self.watermark, len(self.records), 0)})

    def plan(self, plan: wire.Plan) -> tuple[wire.Planned, list[tuple[wire.Ticket, wire.Part]]]:
        if plan.start.positions == {"0": 5}:
            gaps = {"0": wire.ShardGap(5, 10)}
            raise HistoryError(wire.Problem("data-loss", "retention removed it", gaps))
        ticket = wire.Ticket(LOG, plan.filters, 0, 0, self.watermark, plan.columns)
        return wire.Planned(LOG, {"0": 0}, {"0": self.watermark}), [(ticket, wire.Part(0, len(self.records), 100))]

    def advance(self, advance: wire.Advance) -> wire.Advanced:
        return wire.Advanced({"0": self.watermark}, len(self.records), {"0": self.watermark})

    def backlog(self, wanted: wire.AskBacklog, steps_max: int = 0) -> wire.Backlog:
        start = wanted.start["0"]
        found = [
            position
            for position, topic, _ in self.records
            if start < position <= self.watermark and any(matches(each, topic) for each in wanted.filters)
        ]
        return wire.Backlog(len(found), is_estimate=False)

    def scan(self, ticket: wire.Ticket) -> Generator[pa.RecordBatch, None, None]:
        rows = []
        for position, topic, payload in self.records:
            self.before_row(position)
            if self.fault is not None:
                raise self.fault
            if ticket.start < position <= ticket.end and any(matches(each, topic) for each in ticket.filters):
                rows.append({"topic": topic, "payload": payload, "qos": 1, "shard": 0, "position": position})
            if len(rows) == self.rows_at_once:
                yield pa.RecordBatch.from_pylist(rows, choose(ticket.columns))
                rows = []
