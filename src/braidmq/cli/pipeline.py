"""``braidmq pipeline``: jobs that run on Spark. Each is also a PySpark application: ``python -m braidmq.spark.jobs.archive``."""

from __future__ import annotations

from typing import Final

import click

from braidmq.cli.lazy import LazyGroup

_JOBS: Final = {
    "archive": "Copy history to a table partitioned by day and topic pattern, each record once.",
    "decode": "Decode payloads of JSON, CBOR or Sparkplug B into typed columns.",
    "rollup": "Aggregate messages and their numbers over time windows.",
    "learn": "Learn from the history which topic levels vary.",
    "replay": "Republish history or an archived table.",
    "compact": "Merge the small files of a table.",
}
_FOLDERS: Final = ("learn", "replay")  # jobs in packages of their own
_EXTRA: Final = ("numpy", "pandas", "pyarrow", "pyspark")


def _when_missing(module: str) -> str:
    if module.partition(".")[0] in _EXTRA:
        return f"pipeline jobs need {module}: pip install 'braidmq[spark]'"
    return f"the module {module} is missing; reinstall braidmq"


@click.group(
    cls=LazyGroup,
    entries={
        name: (f"braidmq.spark.jobs.{name}{'.command' if name in _FOLDERS else ''}:command", line) for name, line in _JOBS.items()
    },
    when_missing=_when_missing,
)
def pipeline() -> None:
    """Jobs over the history, on Spark. They need Java and `pip install 'braidmq[spark]'`."""
