"""A connected socket on the event loop whose two directions end on their own.

When a write fails, the peer may have ended; what it sent before is still read, and only then the socket counts as lost (C30).
``end`` writes what waits and reads until the peer has closed too. Both have ``END_S`` seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from braidmq.base.deadline_clock import after_reading
from braidmq.net.streams import Stream
from braidmq.net.write_queue import Buffer, WriteQueue

END_S: Final = 3.0
# What is written before the end of the loop's turn; less is written together with what comes after it.
_COLLECTED_BYTES: Final = 64 * 1024


class StreamReceiver(Protocol):
    """Takes what a ``Duplex`` reads. The calls come from the loop, never from within a method of the duplex."""

    def ready(self) -> None:
        """The TLS handshake is done, or there is none."""
        ...

    def room(self) -> memoryview:
        """Where to write what is read next."""
        ...

    def received(self, size: int) -> None:
        """This many bytes were written there."""
        ...

    def written(self) -> None:
        """Something was written: less waits."""
        ...

    def lost(self, kind: str, reason: str) -> None:
        """The socket is closed, and everything that was read has been passed on. Once."""
        ...


class Duplex:
    """Reads and writes without waiting. ``is_open``: what is appended will be written."""

    def __init__(self, stream: Stream, receiver: StreamReceiver) -> None:
        self.bytes_in = self.bytes_out = 0
        self.is_open = True
        self.is_lost = False
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._socket = stream.socket
        self._receiver = receiver
        self._queue = WriteQueue()
        self._reason = ""  # why it is ending
        self._can_write = True
        self._can_read = True  # the peer has not ended the stream
        self._wants_to_read = True
        self._is_reading = self._is_writing = False  # whether the loop watches the socket
        self._is_flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._watch_reading()
        self._loop.call_soon(self._begin)

    @property
    def waiting(self) -> int:
        """The bytes that were appended and not written."""
        return self._queue.waiting

    def append(self, head: bytes, parts: Sequence[Buffer] = (), size: int = 0) -> None:
        """Write these buffers at the end of the loop's turn, or at once if enough has been collected."""
        if not self.is_open:
            return
        self._queue.append(head, parts, size)
        if self._is_writing:
            return  # the socket is full
        if self._queue.waiting >= _COLLECTED_BYTES:
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush_in_turn)

    def flush(self) -> None:
        """Write what was appended now: the end of the turn may be a round of reading away."""
        if not self._is_writing and self._queue.waiting:
            self._flush()

    def read(self, wanted: bool) -> None:
        """Go on reading, or stop for a while."""
        self._wants_to_read = wanted
        self._watch_reading()
        if wanted and self._is_reading and self._stream.has_more:
            self._loop.call_soon(self._read)

    def end(self, reason: str) -> None:
        """Take nothing more to write; write what waits, and read until the peer's end."""
        if self.is_open and not self.is_lost:
            self._begin_to_end(reason)
            self._flush()

    def finish(self, reason: str, kind: str = "closed", last: bytes = b"") -> None:
        """Close the socket at once. ``last``: sent if the socket takes it."""
        if last and self.is_open:
            self._queue.append(last, (), 0)
            self._flush()
        if self.is_lost:
            return
        self.is_lost = True
        self.is_open = False
        self._queue.clear()
        self._watch_reading()
        self._watch_writing()
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()
        self._loop.call_soon(self._receiver.lost, kind, reason)

    def _begin(self) -> None:
        if self.is_lost:
            return
        if not self._stream.is_ready:
            try:
                self._is_writing = self._watch(self._stream.begin(), self._is_writing, is_reader=False)
            except OSError as error:
                self.finish(f"TLS failed: {in_words(error)}", "tls")
                return
            if not self._stream.is_ready:
                return
        self._watch_writing()
        self._receiver.ready()
        if self._stream.has_more:
            self._read()

    def _read(self) -> None:
        if not self._stream.is_ready:
            self._begin()
            return
        while self._is_reading:
            try:
                size = self._stream.receive_into(self._receiver.room())
            except OSError as error:
                self.finish(self._reason or f"the connection was lost: {in_words(error)}")
                return
            if size is None:
                return
            if size == 0:
                self._on_end_of_stream()
                return
            self.bytes_in += size
            self._receiver.received(size)
            if not self._stream.has_more:
                return

    def _on_end_of_stream(self) -> None:
        self._can_read = False
        self._watch_reading()
        if self.is_open:
            self._begin_to_end("closed by the peer")
        self._flush()  # the peer may have closed one direction only, and wait for the rest

    def _flush_in_turn(self) -> None:
        self._is_flush_due = False
        self._flush()
        if not self.is_lost:
            self._receiver.written()

    def _on_writable(self) -> None:
        if not self._stream.is_ready:
            self._begin()
            return
        self._flush()
        if not self.is_lost:
            self._receiver.written()

    def _flush(self) -> None:
        """Write what the socket takes, and finish when both directions have ended. Calls nothing of the receiver's."""
        if self.is_lost or not self._stream.is_ready:
            return
        try:
            while self._can_write and self._queue.waiting:
                size = self._stream.send(self._queue.next())
                if not size:
                    break
                self.bytes_out += size
                self._queue.advance(size)
            if self._can_write and not self.is_open and not self._queue.waiting:
                self._can_write = False
                self._stream.end_writing()
        except OSError as error:
            self._can_write = False
            self._queue.clear()
            if self.is_open:
                self._begin_to_end(f"the connection was lost: {in_words(error)}")
        self._watch_writing()
        if not self._can_read and not self._can_write:
            self.finish(self._reason)

    def _begin_to_end(self, reason: str) -> None:
        self.is_open = False
        self._reason = reason
        self._timer = self._loop.call_later(END_S, after_reading, self._loop, self._on_end_late)

    def _on_end_late(self) -> None:
        if self._wants_to_read:
            self.finish(self._reason)
        elif not self.is_lost:  # the receiver has more to read first
            self._timer = self._loop.call_later(END_S, after_reading, self._loop, self._on_end_late)

    def _watch_reading(self) -> None:
        wanted = self._wants_to_read and self._can_read and not self.is_lost
        self._is_reading = self._watch(wanted, self._is_reading, is_reader=True)

    def _watch_writing(self) -> None:
        self._is_writing = self._watch(self._queue.waiting > 0 and not self.is_lost, self._is_writing, is_reader=False)

    def _watch(self, wanted: bool, is_watched: bool, *, is_reader: bool) -> bool:
        if wanted != is_watched:
            if is_reader:
                self._loop.add_reader(self._socket, self._read) if wanted else self._loop.remove_reader(self._socket)
            else:
                self._loop.add_writer(self._socket, self._on_writable) if wanted else self._loop.remove_writer(self._socket)
        return wanted


def in_words(error: OSError) -> str:
    """An error of a socket for a log line."""
    return error.strerror or str(error) or type(error).__name__
