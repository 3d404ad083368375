"""The limits of a streaming batch, in the classes that Spark has since 4.2; earlier versions pass none."""

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
    except ImportError:  # Spark 4.0 and 4.1, which never call what needs these

        class ReadLimit:
            """No limit is ever given there."""

        class SupportsTriggerAvailableNow:
            """Not known there: the engine itself stops at what was there when it began."""

        ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = ReadLimit

__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "ReadMinRows", "SupportsTriggerAvailableNow"]
