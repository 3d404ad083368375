"""MQTT history as a Spark table and stream, and a sink: `format("braidmq")`. Knows the protocol, not the server.

Drivers and executors import this, from a zip too: it needs Python 3.11, pyarrow, numpy and msgspec, and nothing compiled of ours.
`import pyspark_braidmq` is not needed either: Spark finds that module by its name and registers the format. Imported before a
session is started, this package lets the session's processes run in the same Python; `register(spark)` does the same later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.spark.launch import prepare, register

if TYPE_CHECKING:
    from braidmq.spark.source.format import BraidDataSource as BraidDataSource

__all__ = ["BraidDataSource", "register"]

prepare()


def __getattr__(name: str) -> object:
    # Late, so that other parts of the package can be had without pyspark.
    if name == "BraidDataSource":
        from braidmq.spark.source.format import BraidDataSource

        return BraidDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
