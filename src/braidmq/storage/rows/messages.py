"""Converts stored messages between memory, where they expire by the monotonic clock, and rows, which use the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from braidmq.base.errors import Corruption, UsageError
from braidmq.broker.ports import StoredMessage
from braidmq.lane.path.expiry import from_wall, to_wall
from braidmq.lane.path.message import Message
from braidmq.storage.format.kept_messages import decode_message, encode_message


class MessageRows:
    """Converts messages to rows and back; ``wall`` and ``now`` are the two clocks, in seconds."""

    def __init__(self, wall: Callable[[], float] = time.time, now: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._now = now

    def row_of(self, message: Message, user_name: str | None, stored_at: float = 0.0) -> bytes:
        """The value of the message's row, stored at these wall-clock seconds (0: now).

        Raises UsageError if the message is too large to be stored.
        """
        wall = self._wall()
        put_at = round((stored_at or wall) * 1e6)
        return encode_message(message, user_name, to_wall(message.expires_at, wall - self._now()), put_at)

    def message_of(self, value: bytes, name: str) -> StoredMessage:
        """The message of a row's value, expired or not; errors refer to it by ``name``.

        Raises UsageError if a newer version wrote the row, Corruption if it is invalid.
        """
        try:
            record, user_name = decode_message(value)
            message = Message(record.topic, record.payload, record.qos, record.retain, record.publisher)
        except UsageError as problem:
            raise UsageError(f"{name} cannot be read: {problem.detail}", problem.hint) from None
        except (Corruption, UnicodeDecodeError) as problem:
            raise Corruption(f"{name} cannot be read: {problem}") from None
        expires_at = record.expires_at
        if expires_at or record.properties:
            offset = self._wall() - self._now()
            message.set_properties(record.properties, from_wall(expires_at, offset), record.expiry_offset)
        return StoredMessage(message, user_name, stored_at=record.published_at / 1e6)
