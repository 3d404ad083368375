"""The upper limit of Python data sources: the same record batches, from memory-mapped files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from braidmq.flight import connect, wire
from braidmq.spark.source.schema import struct_of


class MemorySource(DataSource):
    """Format `memory`: a directory of files written by `keep_batches`, one per partition; an empty one is a job without rows."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> StructType:
        return struct_of(None)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _MemoryReader(self.options["path"])


class _MemoryReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(file)) for file in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return  # Spark's placeholder for a plan without parts
        with pa.memory_map(partition.value) as file, pa.ipc.open_stream(file) as batches:
            yield from batches


def keep_batches(folder: Path, port: int) -> None:
    """Write the streams of the history service to a new directory, one file per part of its plan."""
    folder.mkdir()
    with connect(f"127.0.0.1:{port}") as client:
        for number, (ticket, _) in enumerate(client.plan(wire.Plan(["#"])).parts):
            batches = client.stream(ticket)
            first = next(batches)
            with pa.ipc.new_stream(folder / f"{number:04d}", first.schema) as file:
                file.write_batch(first)
                for batch in batches:
                    file.write_batch(batch)
