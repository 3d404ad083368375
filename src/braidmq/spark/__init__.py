"""MQTT history as a Spark table and stream, and a sink: `format("braidmq")`. Independent of the server.

Drivers and executors import this package, also from a zip: it needs Python 3.11, pyarrow, numpy and msgspec, and none of our
compiled modules. `import pyspark_braidmq` is not needed: Spark finds that module by its name and registers the format. If this
package is imported before a session starts, the session's processes run in the same Python; `register(spark)` does the same
later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.spark.launch import prepare, register

if TYPE_CHECKING:
    from braidmq.spark.source.format import BraidDataSource as BraidDataSource

__all__ = ["BraidDataSource", "register"]

prepare()


def __getattr__(name: str) -> object:
    # Imported on demand, so that other parts of the package work without pyspark.
    if name == "BraidDataSource":
        from braidmq.spark.source.format import BraidDataSource

        return BraidDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
