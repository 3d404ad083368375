"""The limits of a streaming batch, as classes of Spark 4.2 and later; earlier versions pass none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            ReadMinRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # Spark 4.0 and 4.1 never call methods that need these

        class ReadLimit:
            """A stand-in; those versions never pass a limit."""

        class SupportsTriggerAvailableNow:
            """A stand-in; in those versions the engine itself stops at the data that existed at the start."""

        ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = ReadLimit

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "ReadMinRows", "SupportsTriggerAvailableNow"]
