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
        self.is_granted = False  # the stream ended early because of it

    @property
    def is_asked(self) -> bool:
        """Whether the first signal has arrived."""
        return self._asked.is_set()

    @property
    def exit_code(self) -> int:
        """The exit status that a shell reports for a program ended by this signal."""
        return 128 + self._number

    def sleep(self, seconds: float) -> None:
        """Sleep; raises Stopped as soon as the job is asked to stop."""
        if self._asked.wait(seconds):
            raise Stopped

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Treat the first signal as a request to stop; the second one raises Interrupted."""

        def note(number: int) -> None:
            if self._asked.is_set():
                raise Interrupted(number)
            self._number = number
            self._asked.set()

        # Spark's own Ctrl-C handler would cancel all jobs in the middle of a call.
        with _handled(note):
            yield


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Make both signals raise Interrupted."""

    def end(number: int) -> None:
        raise Interrupted(number)

    with _handled(end):
        yield


@contextmanager
def holding_signals() -> Iterator[None]:
    """Delay signals: they raise Interrupted at the end of the block, when handlers are restored.

    Used while Spark starts: interrupted then, Java prints long errors and does not exit. Spark also installs its own Ctrl-C
    handler, which calls Spark in the middle of another call; py4j cannot do that.
    """
    came: list[int] = []
    with _handled(came.append):
        yield
    if came:
        raise Interrupted(came[0])


def quieten_py4j() -> None:
    """Keep py4j from printing tracebacks to standard error when a signal or the end of Spark interrupts a call.

    No information is lost: py4j raises the same errors.
    """
    for name in ("py4j", "py4j.java_gateway", "py4j.clientserver"):
        logger = logging.getLogger(name)
        logger.propagate = False
        if not logger.handlers:  # otherwise Python prints warnings and errors to standard error
            logger.addHandler(logging.NullHandler())
    root = logging.getLogger()
    if _is_not_of_py4j not in root.filters:
        root.addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    # py4j logs some messages to the root logger.
    return PurePath(record.pathname).parent.name != "py4j"


@contextmanager
def _handled(handle: Callable[[int], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    before = {each: signal.signal(each, lambda number, _frame: handle(number)) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
