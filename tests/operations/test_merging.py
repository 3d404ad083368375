"""Pages of lists that are on several nodes."""

from __future__ import annotations

import random

from braidmq.control.contract import Page
from braidmq.operations.merging import merge_pages


def page(names: list[str], cursor: str, limit: int) -> Page[str]:
    """What a node answers."""
    left = sorted(name for name in names if name > cursor)
    chosen = left[:limit]
    return Page(chosen, chosen[-1] if len(left) > limit else "")


def read_all(nodes: list[list[str]], limit: int, cut: int) -> list[str]:
    """Every page of the merged list; nodes answer ``cut`` names fewer than they were asked for, as if some had gone."""
    found: list[str] = []
    cursor = ""
    while True:
        pages = [page(names, cursor, limit) for names in nodes]
        shorter = [Page(each.items[: len(each.items) - cut], each.cursor) if each.cursor else each for each in pages]
        merged = merge_pages(limit, shorter, str, lambda one, other: one)
        assert len(merged.items) <= limit
        found += merged.items
        cursor = merged.cursor
        if not cursor:
            return found


def test_all_pages_together_have_each_entry_once() -> None:
    for seed in range(200):
        choice = random.Random(seed)
        names = [f"{number:03}" for number in range(choice.randrange(60))]
        nodes: list[list[str]] = [[] for _ in range(choice.randrange(1, 5))]
        for name in names:
            choice.choice(nodes).append(name)

        assert read_all(nodes, choice.randrange(1, 9), cut=0) == names


def test_a_short_page_of_one_node_loses_no_later_entries() -> None:
    one = [f"a{number}" for number in range(8)]
    other = ["z"]

    found = read_all([one, other], limit=4, cut=1)

    assert found[-1] == "z"
    assert {"a4", "a5", "a6", "a7"} <= set(found)


def test_entries_with_one_name_are_joined() -> None:
    pages = [Page([("a", 1), ("b", 1)]), Page([("b", 2)])]

    merged = merge_pages(10, pages, lambda each: each[0], lambda one, other: (one[0], one[1] + other[1]))

    assert merged.items == [("a", 1), ("b", 3)]
