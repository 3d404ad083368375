"""Pages of lists that may be long: their names are gone through in slices, because the event loop must not wait for them.

A page holds the smallest names after its cursor. What comes or goes meanwhile may or may not be on the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from braidmq.control.contract import PageRequest

SLICE = 5000  # names looked at in one turn of the loop: about a millisecond


async def page_of(names: Iterable[str], page: PageRequest) -> tuple[dict[str, int], str]:
    """The smallest names that the page asks for, in order, and how often each comes; and the cursor of the next page.

    ``names`` must bear changes of what it goes through, for others run in between.
    """
    wanted = page.limit + 1
    counts: dict[str, int] = {}
    largest = ""  # nothing above it is wanted; empty: not known yet
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
