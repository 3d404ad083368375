"""Retention by age and by bytes, exact to an epoch: how far the floor of a shard may rise.

Readers with a name may pin what they have not read yet, up to a limit: retention goes that much further back for them and not
more, so that a reader nobody runs any more cannot fill the disk. Whoever falls below the floor is told of the gap when it reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from braidmq.storage.format.rows import EpochRow


class RetentionLimits(Struct, frozen=True, gc=False):
    """How long records stay and how many bytes of them; None: without limit. `pin_*` is what pins may add to it."""

    age_us: int | None = None
    size_bytes: int | None = None
    pin_age_us: int = 0
    pin_bytes: int = 0


def choose_floor(
    epochs: Iterable[EpochRow], limits: RetentionLimits, now: int, watermark: int, pins: Iterable[int] = (), floor: int = 0
) -> int:
    """The floor that retention asks for, never below the present one; epochs that end below it are to be removed.

    A pin is the position of a named reader: records later than it are still wanted. What is not committed is never removed.
    """
    ordered = list(epochs)
    wanted = _floor(ordered, limits.age_us, limits.size_bytes, now, watermark)
    pin = min(pins, default=None)
    if pin is not None:
        # The floor is the end of an epoch plus one, so an epoch with a later record than the pin stays whole.
        pinned = max((epoch.end + 1 for epoch in ordered if epoch.end <= pin), default=0)
        age_us = None if limits.age_us is None else limits.age_us + limits.pin_age_us
        size_bytes = None if limits.size_bytes is None else limits.size_bytes + limits.pin_bytes
        wanted = max(min(wanted, pinned), _floor(ordered, age_us, size_bytes, now, watermark))
    return max(floor, wanted)


def _floor(epochs: list[EpochRow], age_us: int | None, size_bytes: int | None, now: int, watermark: int) -> int:
    floor = 0
    excess = sum(epoch.size_bytes for epoch in epochs) - size_bytes if size_bytes is not None else 0
    for epoch in epochs:
        is_old = age_us is not None and epoch.end < now - age_us
        # Of the newest epoch everything or nothing would go: a limit smaller than one epoch must not mean "keep nothing".
        is_excess = excess > 0 and epoch is not epochs[-1]
        if epoch.end > watermark or not (is_old or is_excess):
            break
        floor = epoch.end + 1
        excess -= epoch.size_bytes
    return floor
