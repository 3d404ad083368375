"""Divides ranges into parts: at the ends of epochs, by size, and without epochs that cannot match.

A part is a range (start, end] of one shard. Together the parts hold every record of the range once: a record is in an epoch, and
the ranges cover all epochs that may have matches without overlapping.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import merge
from math import ceil, inf
from typing import Final

from msgspec import Struct

# A good amount of work for one task, and cheap enough to read again after a failure.
ROWS: Final = 250_000
BYTES: Final = 32 * 1024 * 1024
# Maximum number of parts per epoch, since each part has to scan the whole epoch.
_CUTS_MAX: Final = 64
# Maximum number of parts below the usual size; each costs an endpoint in the answer, and a task.
_PARTS_MAX: Final = 10_000


class Weight(Struct, frozen=True, gc=False):
    """The portion of an epoch within a range (start, end]: its maximum size, and the expected matches."""

    start: int
    end: int
    rows_max: int
    bytes_max: int
    rows: float
    size_bytes: float


class Slice(Struct, frozen=True, gc=False):
    """A part: (start, end] and its maximum size."""

    start: int
    end: int
    rows_max: int
    bytes_max: int


class Target(Struct, frozen=True, gc=False):
    """The maximum size of a part, and whether epochs are cut to meet it."""

    rows: float = ROWS
    size_bytes: float = BYTES
    cuts_epochs: bool = False


def target_of(weights: Iterable[Weight], partitions: int, rows_max: int | None = None, bytes_max: int | None = None) -> Target:
    """The part size that gives about this many partitions (0: any number) of about these maximum rows and bytes.

    Without any of these it is the usual size.
    """
    if not partitions and rows_max is None and bytes_max is None:
        return Target()
    rows = size_bytes = 0.0
    for weight in weights:
        rows += weight.rows
        size_bytes += weight.size_bytes
    part_rows = _least(rows_max, rows / partitions if partitions else None)
    part_bytes = _least(bytes_max, size_bytes / partitions if partitions else None)
    return Target(max(part_rows, rows / _PARTS_MAX, 1.0), max(part_bytes, size_bytes / _PARTS_MAX, 1.0), cuts_epochs=True)


def _least(*bounds: float | None) -> float:
    return min((bound for bound in bounds if bound is not None), default=inf)


def split(families: Sequence[Sequence[Weight]], target: Target) -> list[Slice]:
    """Split a shard into parts; the epochs of each family must be in order."""
    slices: list[Slice] = []
    done = 0
    for cut in _cuts(families, target):
        found = [_overlap(family, done, cut) for family in families]
        weights = [weight for each in found for weight in each]
        if weights:
            start = max(done, min(weight.start for weight in weights))
            rows_max = sum(min(weight.rows_max, min(weight.end, cut) - max(weight.start, start)) for weight in weights)
            slices.append(Slice(start, cut, rows_max, sum(weight.bytes_max for weight in weights)))
        done = cut
    return slices


def _cuts(families: Sequence[Sequence[Weight]], target: Target) -> Iterable[int]:
    """Where parts end, in order."""
    last = 0
    share = 0.0  # of the current part that is filled
    for weight in merge(*families, key=_end):
        size = max(weight.rows / target.rows, weight.size_bytes / target.size_bytes)
        pieces = min(ceil(size - 0.01), weight.end - weight.start, _CUTS_MAX) if target.cuts_epochs else 1
        if pieces > 1:
            ends = [weight.start + (weight.end - weight.start) * piece // pieces for piece in range(pieces + 1)]
            share = 0.0
        else:
            share += size
            ends = [weight.end] if share >= 1 else []
            share = 0.0 if ends else share
        for end in ends:
            if end > last:
                yield end
                last = end
    end = max((family[-1].end for family in families if family), default=0)
    if end > last:
        yield end


def _overlap(family: Sequence[Weight], start: int, end: int) -> Sequence[Weight]:
    first = bisect_right(family, start, key=_end)
    last = first
    while last < len(family) and family[last].start < end:
        last += 1
    return family[first:last]


def _end(weight: Weight) -> int:
    return weight.end
