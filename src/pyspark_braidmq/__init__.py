"""Found by Spark by its name: the format `braidmq` is there without a call to register it."""

from __future__ import annotations

from braidmq.spark.source.format import BraidDataSource as DefaultSource

__all__ = ["DefaultSource"]
