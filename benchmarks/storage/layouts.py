"""The cost and precision of the layouts: ``python -m benchmarks.storage.layouts``; uncompiled with ``BRAIDMQ_PURE=1``.

Each topic represents one record of an epoch. *Extra* is the number of records that a scan examines in vain per matching record,
*jumps* are its seeks; steps from a record to the next one are not counted.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

from braidmq.lane import is_compiled
from braidmq.mqtt.topics import matches
from braidmq.storage.layouts import HashedLayout, Layout, LearnedLayout, Query

T = TypeVar("T")

FORMS: dict[str, Callable[[], Layout]] = {
    "learned": LearnedLayout,
    "hashed": HashedLayout,
    "hashed, interleaved": lambda: HashedLayout(is_interleaved=True),
}


def fleet() -> tuple[list[str], list[str]]:
    """25 000 devices with four topics each."""
    topics = [f"devices/dev-{number:06d}/{kind}" for number in range(25_000) for kind in ("temp", "hum", "state", "log")]
    return topics, ["devices/dev-012345/temp", "devices/+/temp", "devices/dev-012345/#", "+/+/temp"]


def plant() -> tuple[list[str], list[str]]:
    """100 000 sensors in a tree of sites, lines and machines."""
    topics = [f"acme/site{a}/line{b}/m{c}/s{d}/v" for a in range(10) for b in range(20) for c in range(50) for d in range(10)]
    return topics, ["acme/site3/line7/m11/s5/v", "acme/+/line7/+/s5/v", "acme/site3/#", "acme/+/+/m11/s5/v", "+/+/+/+/s5/+"]


def noise() -> tuple[list[str], list[str]]:
    """50 000 topics without any structure."""
    chance = random.Random(7)
    topics = sorted({"/".join(f"n{chance.randrange(1000)}" for _ in range(chance.randint(1, 5))) for _ in range(50_000)})
    return topics, [topics[30_000], "n5/#", "+/n7/+", "n5/+/n9"]


def microseconds(step: Callable[[T], object], inputs: Sequence[T]) -> float:
    """The mean time of a step."""
    begin = time.perf_counter()
    for each in inputs:
        step(each)
    return (time.perf_counter() - begin) / len(inputs) * 1e6


def scan(indexes: list[bytes], query: Query) -> tuple[int, int]:
    """How many of the sorted indexes the query leads to, and how many jumps that takes."""
    visited, jumps = 0, 1
    at = bisect_left(indexes, query.first())
    while at < len(indexes):
        index = indexes[at]
        if query.matches(index):
            visited += 1
            at += 1
            continue
        goal = query.ratchet(index)
        if goal is None:
            break
        jumps += 1
        at = bisect_left(indexes, goal, at + 1)
    return visited, jumps


def report(shape: Callable[[], tuple[list[str], list[str]]]) -> None:
    """Print the costs of indexing the shape's topics, and of its filters."""
    topics, filters = shape()
    published = [topic.encode() for topic in topics]
    random.Random(1).shuffle(published)
    print(f"\n{shape.__name__}: {shape.__doc__}")
    print(f"  {'layout':<20}{'new topic':>12}{'known topic':>12}{'patterns':>10}")
    layouts = {name: make() for name, make in FORMS.items()}
    for name, layout in layouts.items():
        new = microseconds(layout.index, published)
        microseconds(layout.index, published[:5000])
        known = microseconds(layout.index, published[:5000] * 20)
        patterns = len({layout.index(topic)[:4] for topic in published}) if isinstance(layout, LearnedLayout) else 0
        print(f"  {name:<20}{new:>9.2f} us{known:>9.2f} us{patterns or '-':>10}")
    sorted_indexes = {name: sorted(map(layout.index, published)) for name, layout in layouts.items()}
    print(f"  {'filter':<28}{'layout':<20}{'plan':>10}{'queries':>9}{'matching':>10}{'extra':>8}{'jumps':>8}")
    for topic_filter in filters:
        wanted = sum(matches(topic_filter, topic) for topic in topics)
        for name, layout in layouts.items():
            indexes = sorted_indexes[name]
            plan = layout.plan(topic_filter)
            spent = microseconds(layout.plan, [topic_filter] * 10)
            scans = [scan(indexes, query) for query in plan]
            extra = (sum(visited for visited, _ in scans) - wanted) / max(wanted, 1)
            jumps = sum(jumps for _, jumps in scans)
            print(f"  {topic_filter:<28}{name:<20}{spent:>7.0f} us{len(plan):>9}{wanted:>10}{extra:>8.2f}{jumps:>8}")


def report_bound() -> None:
    """Print the size of a full trie, and how long planning the worst filters takes."""
    chance = random.Random(3)
    topics = ["/".join(f"name{chance.randrange(10_000)}" for _ in range(4)).encode() for _ in range(60_000)]
    tracemalloc.start()
    layout = LearnedLayout((1000, 1000), cached_topics_max=2)
    before = tracemalloc.get_traced_memory()[0]
    for topic in topics:
        layout.index(topic)
        layout.take_rows()
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    print(f"\na full trie: {layout.entries} entries, {size / 2**20:.1f} MiB")
    for topic_filter in ("+/+/+/+", "+/+/+/name1", "name1/#", "+/name1/#"):
        spent = microseconds(layout.plan, [topic_filter] * 5)
        print(f"  {topic_filter:<28}{spent / 1000:>8.2f} ms{len(layout.plan(topic_filter)):>9} queries")


if __name__ == "__main__":
    print(f"lane: {'compiled' if is_compiled() else 'uncompiled'}")
    for each in (fleet, plant, noise):
        report(each)
    report_bound()
