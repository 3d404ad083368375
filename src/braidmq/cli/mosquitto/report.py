"""The result of an import: braidmq's tables, and the outcome of each Mosquitto line."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from braidmq.base.config.keys import Path, dotted, format_value
from braidmq.base.errors import UsageError
from braidmq.cli.mosquitto.conf import ConfLine

Outcome = Literal["taken", "changed", "none"]


class ReportRow(msgspec.Struct, frozen=True):
    """The outcome of one line; ``line`` is None for a default of Mosquitto."""

    outcome: Outcome
    line: ConfLine | None
    text: str


class Report:
    """Collects tables and rows."""

    def __init__(self) -> None:
        self.tables: dict[str, Any] = {}
        self.rows: list[ReportRow] = []
        self.held: dict[str, str] = {}  # listeners that are written but not enabled, with the reasons

    def tell(self, outcome: Outcome, line: ConfLine | None, text: str) -> None:
        """Report the outcome of a line."""
        self.rows.append(ReportRow(outcome, line, text))

    def tell_overruled(self, line: ConfLine | None) -> None:
        """Report that a later line overrides this one."""
        if line is not None:
            self.tell("none", line, "overridden by a later line")

    def set(self, line: ConfLine, path: Path, value: Any, *, note: str = "", outcome: Outcome = "taken") -> None:
        """Set a key, and report it."""
        table = self.tables
        for part in path[:-1]:
            table = table.setdefault(part, {})
        table[path[-1]] = value
        self.tell(outcome, line, f"{dotted(path)} = {format_value(value)}" + (f" ({note})" if note else ""))


def is_true(line: ConfLine) -> bool:
    """The value of a boolean option; raises UsageError for any other value."""
    if line.value not in ("true", "false"):
        raise bad_value(line, "must be true or false")
    return line.value == "true"


def number(line: ConfLine, least: int = 0) -> int:
    """The value of an integer option; raises UsageError for any other value."""
    try:
        value = int(line.value)
    except ValueError:
        raise bad_value(line, "is not a number") from None
    if value < least:
        raise bad_value(line, f"is less than {least}")
    return value


def bad_value(line: ConfLine, why: str) -> UsageError:
    """The error for a line that Mosquitto itself would reject."""
    return UsageError(f"{line.file}:{line.number}: {line.shown} {why}")
