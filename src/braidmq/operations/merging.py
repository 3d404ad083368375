"""One page of a list whose entries are on several nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from braidmq.control.contract import Page

Item = TypeVar("Item")


def merge_pages(
    limit: int, pages: Sequence[Page[Item]], name_of: Callable[[Item], str], join: Callable[[Item, Item], Item]
) -> Page[Item]:
    """The page of all nodes' entries together, from what each has answered to the same request.

    ``join``: makes one entry of two that have the same name.
    """
    # A node that has more may have entries right behind its cursor: nothing beyond the lowest cursor can be shown yet.
    bound = min((page.cursor for page in pages if page.cursor), default="")
    merged: dict[str, Item] = {}
    for page in pages:
        for item in page.items:
            name = name_of(item)
            if not bound or name <= bound:
                merged[name] = join(merged[name], item) if name in merged else item
    names = sorted(merged)
    if len(names) > limit:
        names = names[:limit]
        bound = names[-1]
    return Page([merged[name] for name in names], bound)
