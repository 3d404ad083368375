"""Ctrl-C and SIGTERM: a streaming job finishes its batch, any other job ends at once. Both print a line."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """Raised to abort a batch because the job was asked to stop. The next run resumes that batch."""


class Interrupted(KeyboardInterrupt):
    """Ends the command at once."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class StopRequest:
    """Whether the job was asked to stop. Created on the main thread; any thread may read it."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._number: int = signal.SIGINT
        self.is_granted = False  # the stream has ended early for it

    @property
    def is_asked(self) -> bool:
        """The first signal has come."""
        return self._asked.is_set()

    @property
    def exit_code(self) -> int:
        """The exit status that a shell reports for a program ended by this signal."""
        return 128 + self._number

    def sleep(self, seconds: float) -> None:
        """Sleep so long; raises Stopped as soon as the job is asked to end."""
        if self._asked.wait(seconds):
            raise Stopped

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the first signal as the request; the second one raises Interrupted."""

        def note(number: int) -> None:
            if self._asked.is_set():
                raise Interrupted(number)
            self._number = number
            self._asked.set()

        # Spark's own handler of Ctrl-C would cancel all jobs in the middle of a call.
        with _handled(note):
            yield


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let both signals raise Interrupted."""

    def end(number: int) -> None:
        raise Interrupted(number)

    with _handled(end):
        yield


@contextmanager
def holding_signals() -> Iterator[None]:
    """Delay signals: they raise Interrupted at the end of the block. Handlers are restored then.

    For Spark's start: a Java that is left alone in the middle of it complains at length, and does not end. And Spark sets a
    handler of its own for Ctrl-C, which calls Spark in the middle of another call; py4j cannot do that.
    """
    came: list[int] = []
    with _handled(came.append):
        yield
    if came:
        raise Interrupted(came[0])


def quieten_py4j() -> None:
    """Let py4j write no tracebacks to standard error when a signal or the end of Spark cuts off a call.

    Nothing is lost: what it would tell there it raises as well.
    """
    for name in ("py4j", "py4j.java_gateway", "py4j.clientserver"):
        logger = logging.getLogger(name)
        logger.propagate = False
        if not logger.handlers:  # else Python writes warnings and errors to standard error
            logger.addHandler(logging.NullHandler())
    root = logging.getLogger()
    if _is_not_of_py4j not in root.filters:
        root.addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    # Some of it goes to the root logger itself.
    return PurePath(record.pathname).parent.name != "py4j"


@contextmanager
def _handled(handle: Callable[[int], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not ours to handle there
        return
    before = {each: signal.signal(each, lambda number, _frame: handle(number)) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
