"""Two cores of a cluster over one log: each of their views reads some of the shards, and asks the other one for the rest."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from braidmq.flight import wire
from braidmq.history.service.errors import HistoryError
from braidmq.history.view.core_requests import OwnShards
from braidmq.history.view.log_view import LogView
from braidmq.history.view.whole_log import WholeLog
from tests.history.staged import Viewed

CORES = {"one": [0], "two": [1]}


class TwoCores:
    """In place of a view of the whole log: asks the first core, and reads each part where its ticket says."""

    def __init__(self, log_dir: Path, scratch_dir: Path) -> None:
        self.away: set[str] = set()
        self.views = {name: LogView.open(log_dir, scratch_dir / name, led=shards) for name, shards in CORES.items()}
        self._owns = {name: OwnShards(view, f"grpc://{name}:8815".__str__) for name, view in self.views.items()}
        self.cores = {name: WholeLog(own, name, CORES, self._ask) for name, own in self._owns.items()}
        self.asked = self.cores["one"]

    def _ask(self, core: str, request: bytes) -> bytes:
        if core in self.away:
            raise HistoryError(wire.Problem("unavailable", f"core {core} is away"))
        return self._owns[core].answer_bytes(request)

    def on_watermarks(self, watermarks: Mapping[int, int]) -> None:
        for view in self.views.values():
            view.on_watermarks(watermarks)

    def shards(self) -> wire.Shards:
        return self.asked.shards()

    def plan(self, plan: wire.Plan) -> tuple[wire.Planned, list[tuple[wire.Ticket, wire.Part]]]:
        return self.asked.plan(plan)

    def advance(self, wanted: wire.Advance) -> wire.Advanced:
        return self.asked.advance(wanted)

    def backlog(self, wanted: wire.AskBacklog) -> wire.Backlog:
        return self.asked.backlog(wanted)

    def scan(self, ticket: wire.Ticket) -> Generator[pa.RecordBatch, None, None]:
        return self.cores[ticket.core].scan(ticket)

    def close(self) -> None:
        for view in self.views.values():
            view.close()


@contextmanager
def viewed_by_two_cores(path: Path, **options: Any) -> Iterator[tuple[Viewed, TwoCores]]:
    """A log of two shards, shown by two cores."""
    with Viewed(path, **options) as stage:
        stage.view.close()
        cores = TwoCores(path / "data" / "log", path / "views")
        stage.view = cores  # type: ignore[assignment] # the same methods
        yield stage, cores
