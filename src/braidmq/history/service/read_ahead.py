"""Reads and sends at the same time: while one batch is sent, which does not need the GIL, the next one is built."""

from __future__ import annotations

import threading
from collections.abc import Generator
from queue import SimpleQueue
from typing import Final, TypeVar

T = TypeVar("T")

# A reader of a few rows gets them without starting a thread.
_WITHOUT: Final = 2


def read_ahead(batches: Generator[T, None, None]) -> Generator[T, None, None]:
    """The same batches; from the third on, a thread builds them one ahead, so that at most one more is in memory.

    Exceptions of `batches` are raised here, in order. Closing this waits for the batch in progress, and closes `batches`.
    """
    try:
        for _ in range(_WITHOUT):
            batch = next(batches, None)
            if batch is None:
                return
            yield batch
    except BaseException:
        batches.close()
        raise
    yield from _with_thread(batches)


def _with_thread(batches: Generator[T, None, None]) -> Generator[T, None, None]:
    made: SimpleQueue[T | None] = SimpleQueue()
    wanted = threading.Semaphore(1)
    problem: list[BaseException] = []
    is_over = False

    def fill() -> None:
        try:
            while wanted.acquire() and not is_over and (batch := next(batches, None)) is not None:
                made.put(batch)
        except BaseException as found:  # raised where the batch would have been returned
            problem.append(found)
        finally:
            batches.close()
            made.put(None)

    filler = threading.Thread(target=fill, name="history-reader", daemon=True)
    filler.start()
    try:
        while (batch := made.get()) is not None:
            wanted.release()
            yield batch
    finally:
        is_over = True
        wanted.release()
        filler.join()
    if problem:
        raise problem[0]
