"""What the program logs, as it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lines_of(name: str) -> Iterator[asyncio.Queue[str]]:
    """The lines that a logger writes."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    handler = logging.Handler()
    handler.emit = lambda record: lines.put_nowait(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel("INFO")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
