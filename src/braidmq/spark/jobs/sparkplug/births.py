"""Finds the birth that describes a metric, among the births of one edge node. Pure: no Spark, no I/O.

A birth lists the metrics of an edge node (NBIRTH) or of one of its devices (DBIRTH) with name, alias and datatype. Messages after
it may leave out the name if they give the alias, and may leave out the datatype. They mean what the birth says that is alive:

    NBIRTH   begins a session: ends the birth of the node and those of all its devices, which are to be born again after it
    DBIRTH   ends the birth of this device
    NDEATH   ends the births of the node and of all its devices
    DDEATH   ends the birth of this device

Aliases are unique in an edge node [tck-id-payloads-alias-uniqueness], yet births are kept by device: data of a device are about
the metrics of its DBIRTH, so that nothing is lost by it, and a node that gives an alias twice gets the right names all the same.

An NDEATH is the will of a connection, and may come when the node is back already. Its `bdSeq` then is not that of the NBIRTH, and
it ends nothing. Events should come in the order of their places. One that comes late, because another shard was read faster, ends
only what is older than itself, and a birth that is older than the one that is alive is left out: what is known never grows older.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

# A position, and the shard for two that are equal: the order of all messages.
Place = tuple[int, int]


class Metric(msgspec.Struct, frozen=True):
    """What a birth says about a metric."""

    name: str
    alias: int | None
    datatype: str


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics of a node (`device` is None) or of a device, for messages after `since`, up to and with `until`."""

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
        """Let a birth begin; gives those that end by it."""
        known = [self._alive[each] for each in {None, birth.device} if each in self._alive]
        if any(each.since >= birth.since for each in known):
            return []
        ended = self._end(birth.device, birth.since)
        self._alive[birth.device] = birth
        return ended

    def died(self, death: Death) -> list[Birth]:
        """Take in a death; gives the births that end by it."""
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
        """End the birth of a device, or all of them for None, as far as they are older."""
        ended = [each for each in self.alive if device in (None, each.device) and each.since < at]
        for each in ended:
            del self._alive[each.device]
        return [msgspec.structs.replace(each, until=at) for each in ended]


def follow(alive: Iterable[Birth], events: Iterable[Birth | Death]) -> list[Birth]:
    """All births of an edge node that say something about messages among these events: those that ended, then those alive.

    The latter, given as `alive` with the events that follow, go on as if there had been no cut.
    """
    node = EdgeNode(alive)
    ended: list[Birth] = []
    for event in sorted(events, key=lambda each: each.since if isinstance(each, Birth) else each.at):
        ended += node.born(event) if isinstance(event, Birth) else node.died(event)
    return ended + node.alive


def distinct(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Each name and each alias once, as it came last: a message must find one metric by either, and not two."""
    by_name: dict[str, Metric] = {}
    for each in metrics:
        by_name.pop(each.name, None)
        by_name[each.name] = each
    owner = {each.alias: each.name for each in by_name.values()}
    return tuple(Metric(name, each.alias if owner[each.alias] == name else None, each.datatype) for name, each in by_name.items())
