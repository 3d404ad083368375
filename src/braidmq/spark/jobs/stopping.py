"""Ctrl-C and SIGTERM: a job that streams is asked to end and finishes its batch, any other ends at once. Both say so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """Ends a batch in the middle because the job was asked to end. The next run goes on with that batch."""


class Interrupted(KeyboardInterrupt):
    """Ends the command at once."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class StopRequest:
    """Whether somebody asked the job to end. Made on the main thread; any thread may look."""

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
        """What a shell reports for a program that this signal ended."""
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
