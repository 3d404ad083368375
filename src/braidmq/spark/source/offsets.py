"""Offsets of the stream, and the arithmetic of batches. No I/O: answers of the service go in, offsets come out.

An offset is `{"version": 3, "log": "<id>", "filters": ["<topic filter>", ...], "shards": {"0": <position>, ...}}`. A batch is the
range `(start, end]` of every shard, for the filters in its end. Two optional fields:

- `"gone": {"0": {"<class>": <position>}}`: what a class of a shard had lost to retention when the stream began at the earliest
  record. It is dropped once the stream has passed that position.
- `"began": {"shards": ..., "gone": ...}`, only in the end of the first batch: the start of that batch. Spark stores only the ends
  of batches; when it repeats the first batch it asks again where the stream begins, which may have changed by then.

Version 2 had no filters, version 1 neither `gone` nor `began`. A checkpoint without filters adopts those of the query that reads
it. The latest offset in progress reports also has `"behind"`, for people. Rules:

- Spark compares offsets as text, so each range has exactly one text: shards are sorted by number.
- A shard that an offset does not name begins at its beginning: new shards are read whole.
- An end is never below its start, even if the service has just restarted and knows less than before.
- With a target (`availableNow`) nothing goes past it; shards created after it wait for the next run.
- A batch has the same rows whenever it is read (P1).
- Positions are opaque, and valid only in their log. 0 is the beginning: a read from there never has a gap.
- Once a stream has begun, no shard is at 0, but at its earliest position at that moment, at least 1: what retention deletes from
  then on is reported; what it had deleted before, in any class, is not. Old checkpoints at 0 are settled with their next batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

import msgspec
from msgspec import structs

from braidmq.base.errors import UsageError
from braidmq.flight import wire
from braidmq.mqtt.topics import covers

VERSION: Final = 3
_POSITIONS_ONLY: Final = 1
_WITHOUT_FILTERS: Final = 2
_BEGINNING: Final = 0
# The start of a stream in a shard without records: if retention deletes the first ones, that is then reported.
_BEFORE_ALL: Final = 1
_FILTERS_SHOWN: Final = 5


class Offset(msgspec.Struct, frozen=True):
    """The position of each shard of a log; `log` is None only in offsets written by hand.

    `gone` is what had been deleted of the classes of a shard when the reader began, where that is later than the position.
    `began` is the start of the stream's first batch, in the end of that batch. `filters` are sorted; None if unknown.
    """

    shards: dict[int, int]
    log: str | None = None
    gone: dict[int, wire.Positions] = {}
    began: Offset | None = None
    filters: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """The form stored in a checkpoint; equal offsets have equal text."""
        data: dict[str, Any]
        if self.filters is not None:
            data = {"version": VERSION, "log": self.log, "filters": list(self.filters), **self._position_fields()}
        else:
            version = _WITHOUT_FILTERS if self.gone or self.began else _POSITIONS_ONLY
            data = {"version": version, "log": self.log, **self._position_fields()}
        return data | {"began": self.began._position_fields()} if self.began else data

    def _position_fields(self) -> dict[str, Any]:
        shards = wire.to_wire(self.shards)
        return {"shards": shards, "gone": wire.gone_to_wire(self.gone)} if self.gone else {"shards": shards}

    def is_at(self, other: Offset) -> bool:
        """Whether both are at the same positions, regardless of `began`."""
        return (self.shards, self.log, self.gone) == (other.shards, other.log, other.gone)

    def to_bound(self) -> wire.RangeBound:
        """The start of a range that continues from here."""
        return wire.RangeBound(positions=wire.to_wire(self.shards), gone=wire.gone_to_wire(self.gone))


def parse_offset(data: object) -> Offset:
    """Read an offset of a checkpoint, or the short form `{"0": position}`; raises UsageError if it is invalid."""
    if not isinstance(data, dict):
        raise UsageError("this is not an offset of braidmq", "an offset must be a JSON object")
    log: object = data.get("log")
    began: object = None
    filters: object = None
    if "version" in data or "shards" in data:
        version = data.get("version")
        if isinstance(version, int) and version > VERSION:
            raise UsageError(
                f"the offset is of version {version}, of a newer braidmq than this one", "use that version or a newer one"
            )
        fields = _FIELDS.get(version) if type(version) is int else None
        if fields is None or set(data) - fields:
            known = ", ".join(sorted(fields or _FIELDS[VERSION]))
            raise UsageError("this is not an offset of braidmq", f"it must have exactly {known}")
        began, filters = data.get("began"), data.get("filters")
    else:
        data = {"shards": data}
    if not isinstance(log, str | None):
        raise UsageError("this is not an offset of braidmq", "`log` must be a string")
    if not isinstance(began, dict | None):
        raise UsageError("this is not an offset of braidmq", "the start of a batch must be a JSON object")
    found = _parse_positions(data, log, None if began is None else _parse_positions(began, log, None))
    return structs.replace(found, filters=_parse_filters(filters))


def _parse_filters(data: object) -> tuple[str, ...] | None:
    if data is None:
        return None
    if not isinstance(data, list) or not data or not all(isinstance(each, str) for each in data):
        raise UsageError("this is not an offset of braidmq", "`filters` must be a list of strings")
    return to_filters(data)


def _parse_positions(data: dict[str, Any], log: str | None, began: Offset | None) -> Offset:
    shards, gone = data.get("shards"), data.get("gone", {})
    if not _are_positions(shards):
        raise UsageError("this is not an offset of braidmq", "positions of shards must be numbers")
    if not isinstance(gone, dict) or not all(_are_positions(classes) for classes in gone.values()):
        raise UsageError("this is not an offset of braidmq", "`gone` must have a position for each class of a shard")
    return Offset(wire.from_wire(shards), log, wire.gone_from_wire(gone), began)


_FIELDS: Final = {
    _POSITIONS_ONLY: {"version", "log", "shards"},
    _WITHOUT_FILTERS: {"version", "log", "shards", "gone", "began"},
    VERSION: {"version", "log", "filters", "shards", "gone", "began", "behind"},
}


def _are_positions(data: object) -> TypeGuard[wire.Positions]:
    return isinstance(data, dict) and all(type(each) is int for each in data.values())


def to_filters(filters: Iterable[str]) -> tuple[str, ...]:
    """Topic filters in the form of an offset: sorted, without duplicates."""
    return tuple(sorted(set(filters)))


def check_filters(offset: Offset, filters: Iterable[str]) -> None:
    """Raise UsageError if the offset belongs to a query with other topic filters."""
    now = to_filters(filters)
    if offset.filters is None or offset.filters == now or (_cover(offset.filters, now) and _cover(now, offset.filters)):
        return
    raise UsageError(
        f"the checkpoint belongs to the topic filters {_in_words(offset.filters)}, but the query has {_in_words(now)}",
        "older records of other filters would never be read: use a new checkpoint for them, or the filters of this one; "
        "with the option onFilterChange=continue the query reads the new filters from the checkpoint on",
    )


def _cover(wider: Iterable[str], narrower: Iterable[str]) -> bool:
    wide = list(wider)
    return all(any(covers(each, one) for each in wide) for one in narrower)


def _in_words(filters: Sequence[str]) -> str:
    more = len(filters) - _FILTERS_SHOWN
    shown = ", ".join(filters[:_FILTERS_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def check_log(offset: Offset, log: str) -> None:
    """Raise UsageError if the offset belongs to another log."""
    if offset.log is not None and offset.log != log:
        raise UsageError(
            f"the offset belongs to log {offset.log}, but the servers have log {log}",
            "positions are not valid in another log: point the query at its own broker, or start again with a new checkpoint",
        )


def check_shards(offset: Offset, shards: wire.Shards) -> None:
    """Raise UsageError if the offset names a shard that the log does not have."""
    unknown = sorted(set(offset.shards) - set(_states(shards)))
    if unknown:
        raise UsageError(f"the log has no shard {', '.join(map(str, unknown))}", f"its shards are {', '.join(shards.shards)}")


def latest_of(shards: wire.Shards) -> dict[int, int]:
    """The current end of each shard."""
    return {shard: state.latest for shard, state in _states(shards).items()}


def start_at(bound: wire.RangeBound, shards: wire.Shards) -> dict[int, int]:
    """The position after which each shard is read for this start. A time in the future means now."""
    latest = latest_of(shards)
    if bound.positions is not None:
        return dict.fromkeys(latest, _BEGINNING) | wire.from_wire(bound.positions)
    if bound.time is not None:
        return {shard: max(min(bound.time - 1, end), _BEFORE_ALL) for shard, end in latest.items()}
    if bound.at == "latest":
        return {shard: max(end, _BEFORE_ALL) for shard, end in latest.items()}
    return dict.fromkeys(latest, _BEGINNING)


def begin_at(bound: wire.RangeBound, shards: wire.Shards) -> Offset:
    """The offset at which a stream with this start begins."""
    return settle(Offset(start_at(bound, shards), shards.log, wire.gone_from_wire(bound.gone)), shards)


def settle(start: Offset, shards: wire.Shards) -> Offset:
    """Replace positions of 0 by the current start of the shard. Shards that the offset does not name are left out."""
    states = {shard: state for shard, state in _states(shards).items() if not start.shards.get(shard)}
    begun = {shard: max(states[shard].earliest, _BEFORE_ALL) for shard in start.shards if shard in states}
    found = start.shards | begun
    return Offset(found, start.log, _beyond(found, start.gone | {shard: state.gone for shard, state in states.items()}))


def end_at(bound: wire.RangeBound, shards: wire.Shards) -> dict[int, int]:
    """The last position of each shard for this end."""
    latest = latest_of(shards)
    if bound.positions is not None:
        return latest | wire.from_wire(bound.positions)
    if bound.time is not None:
        return {shard: min(bound.time - 1, end) for shard, end in latest.items()}
    return latest if bound.at == "latest" else dict.fromkeys(latest, _BEGINNING)


def bounds(start: Offset, latest: Mapping[int, int], target: Offset | None) -> dict[int, int]:
    """The maximum position of each shard; shards not in the result are not read."""
    known = set(latest) if target is None else set(target.shards)
    ends = {shard: position for shard, position in latest.items() if shard in known}
    if target is not None:
        ends = {shard: min(position, target.shards[shard]) for shard, position in ends.items()}
    return {shard: max(ends.get(shard, 0), start.shards.get(shard, 0)) for shard in sorted(set(ends) | set(start.shards))}


def end_of_batch(start: Offset, limits: Mapping[int, int], advanced: Mapping[int, int] | None = None) -> Offset:
    """The end of the batch after `start`: everything within its `bounds`, or as far as the service advanced within them."""
    found = dict(limits)
    if advanced is not None:
        found = {shard: min(advanced.get(shard, 0), limit) for shard, limit in limits.items()}
        found = {shard: max(position, start.shards.get(shard, 0)) for shard, position in found.items()}
    return Offset(found, start.log, {shard: classes for shard, classes in _beyond(found, start.gone).items() if shard in found})


def ends_to_ask_for(start: Mapping[int, int], ends: Mapping[int, int]) -> wire.Positions:
    """The ends to request, for all shards; 0 where nothing is wanted, so that the service does not wait for them."""
    least = {shard: max(start.get(shard, _BEGINNING), _BEFORE_ALL) for shard in ends}
    return wire.to_wire({shard: end if end > least[shard] else _BEGINNING for shard, end in ends.items()})


def is_empty(start: Offset, end: Offset) -> bool:
    """Whether there can be no records between the two."""
    return all(position <= start.shards.get(shard, 0) for shard, position in end.shards.items())


def _beyond(positions: Mapping[int, int], gone: Mapping[int, wire.Positions]) -> dict[int, wire.Positions]:
    """The part of `gone` that is later than these positions; only that part matters."""
    found = {}
    for shard, classes in gone.items():
        further = {name: position for name, position in classes.items() if position > positions.get(shard, _BEGINNING)}
        if further:
            found[shard] = further
    return found


def _states(shards: wire.Shards) -> dict[int, wire.ShardState]:
    return dict(sorted((int(shard), state) for shard, state in shards.shards.items()))
