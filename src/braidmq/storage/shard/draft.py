"""The state that a shard will have once the current batch is written."""

from __future__ import annotations

from braidmq.lane.records.records import Record
from braidmq.storage.format.rows import EpochRow, ShardRow
from braidmq.storage.layouts.contract import Row
from braidmq.storage.shard.generations import Generation
from braidmq.storage.shard.producer_marks import ProducerMark


class Draft:
    """The next state of a shard; discarded if the batch fails. `epoch_start` is 0 while no epoch is open."""

    __slots__ = (
        "last",
        "floor",
        "epoch_start",
        "epoch_count",
        "epoch_bytes",
        "static_ids",
        "generation",
        "generations",
        "ended",
        "closed",
        "records",
        "size_bytes",
        "producers",
        "layout_rows",
        "row",
    )

    def __init__(self, row: ShardRow, generation: Generation) -> None:
        self.last = row.last
        self.floor = row.floor
        self.epoch_start = row.epoch_start
        self.epoch_count = row.epoch_count
        self.epoch_bytes = row.epoch_bytes
        self.static_ids: set[bytes] = set()  # of the records that this batch adds to the open epoch
        self.generation = generation
        self.generations: list[Generation] = []  # new ones
        self.ended: list[Generation] = []  # those that the floor has passed
        self.closed: list[EpochRow] = []
        self.records: list[Record] = []
        self.size_bytes = 0
        self.producers: dict[bytes, ProducerMark] = {}
        self.layout_rows: list[tuple[Generation, list[Row]]] = []
        self.row: ShardRow | None = None  # set when it is sealed

    def add_generation(self, generation: Generation) -> None:
        """Write the following records with a new generation."""
        self.generation = generation
        self.generations.append(generation)

    def forget_epoch(self) -> None:
        """The open epoch was closed, and no other is open yet."""
        self.epoch_start = self.epoch_count = self.epoch_bytes = 0
        self.static_ids = set()
