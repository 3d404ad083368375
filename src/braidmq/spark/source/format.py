"""Spark's format `braidmq`. Loaded in many processes, some without our dependencies: this module imports only pyspark."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter

import braidmq
from braidmq.spark.requirements import check_requirements

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class BraidDataSource(DataSource):
    """History as rows, and rows as messages. docs/spark.md lists all options; connections are opened only to transfer data."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Raises UsageError if this Python lacks a dependency: Spark would only say that a worker did not connect."""
        super().__init__(options)
        check_requirements()

    @classmethod
    def name(cls) -> str:
        return "braidmq"

    def schema(self) -> StructType:
        from braidmq.spark.source.options import parse_read_options
        from braidmq.spark.source.schema import struct_of

        return struct_of(parse_read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from braidmq.spark.source.batch import make_reader

        return make_reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from braidmq.spark.source.stream import StreamReader

        return StreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from braidmq.spark.sink import writer as sink

        return sink.make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from braidmq.spark.sink import writer as sink

        return sink.make_stream_writer(self.options, schema, overwrite)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if type(self) is not BraidDataSource:
            return super().__reduce_ex__(protocol)
        return _opener(), (str(Path(braidmq.__file__).parents[1]), self.options)


def _opener() -> Callable[[str, MutableMapping[str, str]], DataSource]:
    """A function that unpickles a source in a process that may not have braidmq on its path yet."""

    # The process that plans a stream looks for the files of `--py-files` in a directory that Spark never fills. A nested function
    # is pickled by value, not by name, so it can run there and add the path.
    def open_source(place: str, options: MutableMapping[str, str]) -> DataSource:
        import sys
        from importlib.util import find_spec

        if find_spec("braidmq") is None:
            sys.path.append(place)
        from braidmq.spark.source.format import BraidDataSource

        return BraidDataSource(options)

    return open_source


def restore(module: str, name: str) -> Any:
    """Unpickle a reader on an executor; raises UsageError if the Python there lacks a dependency."""
    check_requirements()
    kind = getattr(import_module(module), name)
    return kind.__new__(kind)
