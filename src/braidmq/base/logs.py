"""The log of a node: text or JSON lines on standard error, with a limit on how often the same kind of line is written."""

from __future__ import annotations

import json
import logging
import sys
from time import monotonic
from typing import Literal, TextIO

_ROOT = "braidmq"
_KINDS_MAX = 1000


class RateLimit(logging.Filter):
    """Limits lines of one kind (logger and wording, not arguments) per second, and reports how many were suppressed."""

    def __init__(self, lines_per_s_max: int) -> None:
        super().__init__()
        self.lines_per_s_max = lines_per_s_max
        self.suppressed = 0
        self._seen: dict[tuple[str, str], list[float]] = {}  # kind: start of its second, lines in it, lines suppressed

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; errors with a traceback always are."""
        if record.exc_info:
            return True
        now = monotonic()
        kind = (record.name, str(record.msg))
        seen = self._seen.get(kind)
        if seen is None:
            if len(self._seen) >= _KINDS_MAX:
                self._seen.clear()
            self._seen[kind] = [now, 1.0, 0.0]
            return True
        if now - seen[0] >= 1.0:
            if seen[2]:
                record.msg = f"{record.getMessage()} (and {int(seen[2])} more such lines suppressed)"
                record.args = ()
            self._seen[kind] = [now, 1.0, 0.0]
            return True
        if seen[1] >= self.lines_per_s_max:
            seen[2] += 1
            self.suppressed += 1
            return False
        seen[1] += 1
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line; with the name of the node if it has one."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message, and the ``fields`` of ``extra``."""
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._node:
            line["node"] = self._node
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """One line of text; control characters in clients' strings cannot break it into several."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._prefix = f"{node}: " if node else ""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level and message; a traceback follows on lines of its own."""
        message = "".join(char if char.isprintable() else repr(char)[1:-1] for char in record.getMessage())
        line = f"{self.formatTime(record)} {record.levelname.lower():7} {self._prefix}{message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Writes to what is standard error at that moment: a program that embeds the node may replace it, and close the old one."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override] # an attribute there
        """Standard error."""
        return sys.stderr


def set_up(level: str, form: Literal["text", "json"], lines_per_s_max: int, node: str = "") -> None:
    """Write the log to standard error in this format; may be called again to change it.

    ``node``: stands in every line, for a process that shares standard error with others.
    """
    handler = StandardErrorHandler()
    handler.setFormatter(JsonFormatter(node) if form == "json" else TextFormatter(node))
    limit = RateLimit(lines_per_s_max)
    limit.suppressed = lines_suppressed()
    handler.addFilter(limit)
    root = logging.getLogger(_ROOT)
    root.handlers[:] = [handler]
    root.propagate = False
    set_level(level)


def set_level(level: str) -> None:
    """Write lines of this level and above."""
    logging.getLogger(_ROOT).setLevel(level.upper())


def lines_suppressed() -> int:
    """The number of lines that the limit has suppressed since the start."""
    filters = [each for handler in logging.getLogger(_ROOT).handlers for each in handler.filters]
    return sum(each.suppressed for each in filters if isinstance(each, RateLimit))


def level() -> str:
    """The current level."""
    return logging.getLevelName(logging.getLogger(_ROOT).getEffectiveLevel()).lower()
