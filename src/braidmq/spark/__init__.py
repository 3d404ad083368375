"""MQTT history as a Spark table and stream, and a sink: `format("braidmq")`. Knows the wire, nothing of the server.

Drivers and executors import this, from a zip too: it needs Python 3.11, pyarrow, numpy and msgspec, and nothing compiled of ours.
`import pyspark_braidmq` is not needed either: Spark finds that module by its name and registers the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.spark.source import BraidDataSource as BraidDataSource

__all__ = ["BraidDataSource"]


def __getattr__(name: str) -> object:
    # Late, so that other parts of the package can be had without pyspark.
    if name == "BraidDataSource":
        from braidmq.spark.source import BraidDataSource

        return BraidDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
