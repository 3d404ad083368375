"""Retention by age and by bytes, exact to an epoch: how far the floor of a shard may rise.

Named readers may pin records that they have not read yet, up to a limit, so that an abandoned reader cannot fill the disk. A
reader that falls below the floor is told of the gap when it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from msgspec import Struct

from braidmq.storage.format.rows import EpochRow


class Epochs(Protocol):
    """Epochs in order of time."""

    def __len__(self) -> int:
        """The number of epochs."""

    def __iter__(self) -> Iterator[EpochRow]:
        """The epochs from the oldest on."""


class RetentionLimits(Struct, frozen=True, gc=False):
    """How long records are kept and how many bytes of them; None: no limit. `pin_*` is what pins may add to it."""

    age_us: int | None = None
    size_bytes: int | None = None
    pin_age_us: int = 0
    pin_bytes: int = 0


def choose_floor(
    epochs: Epochs,
    limits: RetentionLimits,
    now: int,
    watermark: int,
    pins: Iterable[int] = (),
    floor: int = 0,
    total_bytes: int | None = None,
) -> int:
    """The floor that retention requires, never below the current one; epochs that end below it must be removed.

    A pin is the position of a named reader: records after it are still needed. Uncommitted records are never removed. The running
    time is proportional to what is to be removed, given the bytes of all epochs.
    """
    if total_bytes is None:
        total_bytes = sum(epoch.size_bytes for epoch in epochs)
    wanted = _floor(epochs, limits.age_us, limits.size_bytes, now, watermark, total_bytes)
    pin = min(pins, default=None)
    if pin is not None and wanted > floor:
        age_us = None if limits.age_us is None else limits.age_us + limits.pin_age_us
        size_bytes = None if limits.size_bytes is None else limits.size_bytes + limits.pin_bytes
        pinned = _pinned(epochs, pin, wanted)
        wanted = max(pinned, _floor(epochs, age_us, size_bytes, now, watermark, total_bytes))
    return max(floor, wanted)


def _pinned(epochs: Iterable[EpochRow], pin: int, wanted: int) -> int:
    """The highest floor up to `wanted` that keeps every epoch with a record after the pin."""
    pinned = 0
    for epoch in epochs:
        if epoch.end > pin or epoch.end >= wanted:
            break
        pinned = epoch.end + 1
    return pinned


def _floor(epochs: Epochs, age_us: int | None, size_bytes: int | None, now: int, watermark: int, total_bytes: int) -> int:
    floor = 0
    excess = total_bytes - size_bytes if size_bytes is not None else 0
    newest = len(epochs) - 1
    for number, epoch in enumerate(epochs):
        is_old = age_us is not None and epoch.end < now - age_us
        # The newest epoch can only be removed as a whole: a limit smaller than one epoch must not mean "keep nothing".
        is_excess = excess > 0 and number < newest
        if epoch.end > watermark or not (is_old or is_excess):
            break
        floor = epoch.end + 1
        excess -= epoch.size_bytes
    return floor
