"""The threads that use a store beside the loop's, for example for a backup: the store waits for them before it closes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StoreThreads:
    """Counts the threads that use one store."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    @contextmanager
    def use(self, check: Callable[[], None]) -> Iterator[None]:
        """Count this thread until the block ends; ``check`` raises if the store must not be used.

        No thread that has passed the check is missed by a ``wait`` that begins after the check's result has changed.
        """
        with self._changed:
            check()
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until no thread uses the store; False if that takes longer than the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, timeout_s)
