"""Cuts bytes into frames, for tests that have all of them at hand."""

from __future__ import annotations

from collections.abc import Iterator

from braidmq.net.frames import Frame, FrameBuffer


def feed(buffer: FrameBuffer, data: bytes) -> Iterator[Frame]:
    """Write into the buffer as a socket would, and take what is complete; the bodies are copied."""
    while data:
        room = buffer.room()
        size = min(len(room), len(data))
        room[:size] = data[:size]
        data = data[size:]
        buffer.fill(size)
        while (frame := buffer.next()) is not None:
            yield Frame(frame.kind, frame.flags, frame.destination, bytes(frame.body))


def frames_in(data: bytes) -> list[Frame]:
    """The frames in these bytes."""
    return list(feed(FrameBuffer(), data))
