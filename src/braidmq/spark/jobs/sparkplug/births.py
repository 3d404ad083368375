"""Finds the birth that describes a metric, among the births of one edge node. Pure: no Spark, no I/O.

A birth lists the metrics of an edge node (NBIRTH) or of one of its devices (DBIRTH) with name, alias and datatype. Later messages
may omit the name if they give the alias, and may omit the datatype. The birth that is alive then supplies them:

    NBIRTH   begins a session: ends the birth of the node and of all its devices, which must send new births after it
    DBIRTH   ends the birth of this device
    NDEATH   ends the births of the node and of all its devices
    DDEATH   ends the birth of this device

Aliases are unique within an edge node [tck-id-payloads-alias-uniqueness], yet births are kept per device: data of a device refer
to the metrics of its DBIRTH, so nothing is lost, and a node that uses an alias twice still gets the right names.

An NDEATH is the will of a connection, and may arrive when the node is already back. Its `bdSeq` then differs from that of the
NBIRTH, and it ends nothing. Events should arrive in the order of their places. A late event, because another shard was read
faster, ends only births older than itself, and a birth older than the one alive is ignored: the state never goes back in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

# A position, then the shard to break ties: the order of all messages.
Place = tuple[int, int]


class Metric(msgspec.Struct, frozen=True):
    """A metric as a birth describes it."""

    name: str
    alias: int | None
    datatype: str


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a node (`device` is None) or of a device, for messages after `since` up to and including `until`."""

    device: str | None
    since: Place
    metrics: tuple[Metric, ...]
    bd_seq: int | None = None
    until: Place | None = None


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a node (`device` is None) or of a device."""

    device: str | None
    at: Place
    bd_seq: int | None = None


class EdgeNode:
    """The births of an edge node that are alive: one for the node, and one for each device."""

    def __init__(self, alive: Iterable[Birth] = ()) -> None:
        self._alive = {each.device: each for each in alive}

    @property
    def alive(self) -> list[Birth]:
        """Births that have not ended."""
        return list(self._alive.values())

    def born(self, birth: Birth) -> list[Birth]:
        """Start a birth; returns those that it ends."""
        known = [self._alive[each] for each in {None, birth.device} if each in self._alive]
        if any(each.since >= birth.since for each in known):
            return []
        ended = self._end(birth.device, birth.since)
        self._alive[birth.device] = birth
        return ended

    def died(self, death: Death) -> list[Birth]:
        """Process a death; returns the births that it ends."""
        node = self._alive.get(None)
        is_stale = (
            death.device is None
            and node is not None
            and node.bd_seq is not None
            and death.bd_seq is not None
            and node.bd_seq != death.bd_seq
        )
        return [] if is_stale else self._end(death.device, death.at)

    def _end(self, device: str | None, at: Place) -> list[Birth]:
        """End the older birth of a device, or all older births for None."""
        ended = [each for each in self.alive if device in (None, each.device) and each.since < at]
        for each in ended:
            del self._alive[each.device]
        return [msgspec.structs.replace(each, until=at) for each in ended]


def follow(alive: Iterable[Birth], events: Iterable[Birth | Death]) -> list[Birth]:
    """All births of an edge node that apply to messages among these events: those that ended, then those alive.

    Pass the latter as `alive` with the next events to continue.
    """
    node = EdgeNode(alive)
    ended: list[Birth] = []
    for event in sorted(events, key=lambda each: each.since if isinstance(each, Birth) else each.at):
        ended += node.born(event) if isinstance(event, Birth) else node.died(event)
    return ended + node.alive


def distinct(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Keep the last metric for each name and each alias, so that a message finds exactly one metric by either."""
    by_name: dict[str, Metric] = {}
    for each in metrics:
        by_name.pop(each.name, None)
        by_name[each.name] = each
    owner = {each.alias: each.name for each in by_name.values()}
    return tuple(Metric(name, each.alias if owner[each.alias] == name else None, each.datatype) for name, each in by_name.items())
