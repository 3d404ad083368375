"""Spark's format `braidmq`. Made in many processes, some of them without what braidmq needs: this module imports pyspark only."""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

from braidmq.spark.requirements import check_requirements

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BraidDataSource(DataSource):
    """History as rows, and rows as messages. All options are in docs/spark.md; nothing connects before it is asked for data."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises UsageError if this Python lacks something: Spark itself would only say that a worker did not connect."""
        super().__init__(options)
        check_requirements()

    @classmethod
    def name(cls) -> str:
        return "braidmq"

    def schema(self) -> StructType:
        from braidmq.spark.options import parse_read_options
        from braidmq.spark.schema import struct_of

        return struct_of(parse_read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from braidmq.spark.batch_source import make_reader

        return make_reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from braidmq.spark.stream_source import StreamReader

        return StreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from braidmq.spark import sink

        return sink.make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from braidmq.spark import sink

        return sink.make_stream_writer(self.options, schema, overwrite)


def restore(module: str, name: str) -> Any:
    """What a pickled reader begins as, on an executor: raises in words if the Python there lacks something."""
    check_requirements()
    kind = getattr(import_module(module), name)
    return kind.__new__(kind)
