"""Bodies that are larger than a frame: sent as consecutive frames of one destination, put together again within a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from braidmq.lane.records.records import VALUE_BYTES_MAX
from braidmq.net.frames import BODY_BYTES_MAX, BadFrame, FrameKind

Send = Callable[[FrameKind, int, bytes, int], None]  # sends a frame: kind, destination, body, flags

MORE: Final = 0x80  # flag of a frame: the body goes on in the next frame of this kind and destination
# One record of the largest size, and room for what travels with it.
WHOLE_BYTES_MAX: Final = VALUE_BYTES_MAX + 8 * 1024 * 1024


def split(body: bytes, part_bytes_max: int = BODY_BYTES_MAX) -> Iterator[tuple[bytes, int]]:
    """The bodies of the frames that carry this one, each with its flag."""
    if len(body) <= part_bytes_max:
        yield body, 0
        return
    view = memoryview(body)
    for start in range(0, len(body), part_bytes_max):
        end = start + part_bytes_max
        yield bytes(view[start:end]), MORE if end < len(body) else 0


class BodyParts:
    """Puts bodies together. One object per connection and kind of frame; memory is bounded for all destinations together."""

    def __init__(self, whole_bytes_max: int = WHOLE_BYTES_MAX) -> None:
        self._whole_bytes_max = whole_bytes_max
        self._parts: dict[int, bytearray] = {}
        self._size = 0

    def add(self, destination: int, flags: int, body: bytes | memoryview) -> bytes | memoryview | None:
        """The whole body, once its last frame is there. Raises BadFrame if it is too large."""
        begun = self._parts.get(destination)
        if begun is None and not flags & MORE:
            return body
        if self._size + len(body) > self._whole_bytes_max:
            raise BadFrame(f"a body of more than {self._whole_bytes_max} bytes in several frames")
        if begun is None:
            begun = self._parts[destination] = bytearray()
        begun += body
        self._size += len(body)
        if flags & MORE:
            return None
        del self._parts[destination]
        self._size -= len(begun)
        return bytes(begun)
