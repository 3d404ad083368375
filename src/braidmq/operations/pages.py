"""Pages of long lists: names are examined in slices, because the event loop must not block.

A page holds the smallest names after its cursor. Names added or removed meanwhile may or may not be on the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from braidmq.control.contract import PageRequest

SLICE = 5000  # names examined in one turn of the loop: about a millisecond


async def page_of(names: Iterable[str], page: PageRequest) -> tuple[dict[str, int], str]:
    """The names of the page in order, how often each occurs, and the cursor of the next page.

    ``names`` must tolerate changes during the iteration, since other code runs in between.
    """
    wanted = page.limit + 1
    counts: dict[str, int] = {}
    largest = ""  # names above it are not on the page; empty: not known yet
    after, contains = page.cursor, page.contains
    for i, name in enumerate(names, 1):
        if i % SLICE == 0:
            await asyncio.sleep(0)
        if name <= after or (largest and name > largest) or contains not in name:
            continue
        counts[name] = counts.get(name, 0) + 1
        if len(counts) > 4 * wanted:
            counts = _smallest(counts, wanted)
            largest = next(reversed(counts))
    counts = _smallest(counts, wanted)
    if len(counts) < wanted:
        return counts, ""
    counts.popitem()
    return counts, next(reversed(counts))


def _smallest(counts: dict[str, int], wanted: int) -> dict[str, int]:
    return {name: counts[name] for name in sorted(counts)[:wanted]}
