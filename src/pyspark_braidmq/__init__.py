"""Spark finds this module by its name and registers the format `braidmq`."""

from __future__ import annotations

from braidmq.spark.source.format import BraidDataSource as DefaultSource

__all__ = ["DefaultSource"]
