"""How many bytes of messages a process holds, counted by its objects and not by the allocator."""

from __future__ import annotations

import gc

from braidmq.lane.path.message import Message


def message_bytes() -> int:
    """Topics, payloads and properties of all messages in memory; bytes that several messages share count once."""
    gc.collect()
    parts: dict[int, int] = {}
    for each in gc.get_objects():
        if isinstance(each, Message):
            # Another thread may be about to make this one: then it has none of them yet.
            parts |= {id(part): len(part) for part in (each.topic, each.payload, each.properties) if part is not None}
    return sum(parts.values())
