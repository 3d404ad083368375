"""Bytes that wait to be written to a connection, as a list of buffers, so that one system call takes many frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

# Smaller bodies are joined with what surrounds them: a buffer of its own costs the system call more than the copy does.
_JOINED_BYTES_MAX: Final = 4096
_BUFFERS_PER_WRITE: Final = 256
_BYTES_PER_WRITE: Final = 1024 * 1024


class WriteQueue:
    """Buffers in the order in which they are sent. ``waiting`` is their length."""

    __slots__ = ("_buffers", "_offset", "waiting")

    def __init__(self) -> None:
        self._buffers: deque[Buffer] = deque()
        self._offset = 0  # of what is still to be sent in the first buffer
        self.waiting = 0

    def append(self, head: bytes, body: Sequence[Buffer], size: int) -> None:
        """Add a frame whose body has this many bytes in all. The buffers are not copied: they must not change any more."""
        if size <= _JOINED_BYTES_MAX:
            self._buffers.append(b"".join((head, *body)))
        else:
            self._buffers.append(head)
            self._buffers.extend(body)
        self.waiting += len(head) + size

    def next(self) -> list[Buffer]:
        """What to write with the next system call; not empty if something waits."""
        chosen: list[Buffer] = []
        size = 0
        for buffer in self._buffers:
            if len(chosen) == _BUFFERS_PER_WRITE or size >= _BYTES_PER_WRITE:
                break
            chosen.append(buffer)
            size += len(buffer)
        if self._offset:
            chosen[0] = memoryview(chosen[0])[self._offset :]
        return chosen

    def advance(self, size: int) -> None:
        """This many bytes were written."""
        self.waiting -= size
        size += self._offset
        buffers = self._buffers
        while buffers and size >= len(buffers[0]):
            size -= len(buffers.popleft())
        self._offset = size

    def clear(self) -> None:
        """Forget everything that waits."""
        self._buffers.clear()
        self._offset = self.waiting = 0
