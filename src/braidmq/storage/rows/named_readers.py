"""Named readers (queries, links, groups): their positions are stored with the log, and they may pin records not yet read.

A reader has one row in each shard it has a position in, so that the row moves with the shard:

    0xE8 | name    version (1) = 1, flags (1) bit 0: pins, position (8), saved at (8)
                   version 2: the same, and the owner's user name to the end
                   version 3: flags have bit 1 if there is an owner; length of the owner's user name (2), that name,
                   and the reader's topic filters, separated by zero bytes, to the end

Only committed positions count here: a position that is not on disk yet neither moves the pin nor shows. Retention is written
after the positions that it respects, and the database loses writes only at the end, so a crash cannot keep a deletion and lose
the position that allowed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from struct import Struct as Packed
from typing import Final, Protocol

from msgspec import Struct, structs

from braidmq.base.errors import Corruption, UsageError
from braidmq.storage.format.rows import TIMESTAMP_MAX, EpochRow
from braidmq.storage.rows.changes import Change, Delete, Put, WriteRefusal
from braidmq.storage.shard.shard import Shard

READER_PREFIX: Final = b"\xe8"
READERS_END: Final = b"\xe9"
NAME_BYTES_MAX: Final = 255
# Every reader is in memory, and every retention step examines it.
READERS_MAX: Final = 10_000

_VERSION: Final = 1
_OWNED_VERSION: Final = 2
_FILTERED_VERSION: Final = 3
_ROW: Final = Packed(">BBQQ")
_PINS: Final = 1
_OWNED: Final = 2
# Filters of a reader are in memory and in each of its rows. Those of a reader with more than this are not stored.
_FILTERS_BYTES_MAX: Final = 1024


class ReaderPlace(Struct, frozen=True, gc=False):
    """The position of a reader in one shard: everything at or below it has been read; and its owner, if a user created it.

    `filters` are its topic filters; empty if unknown.
    """

    position: int
    pins: bool
    saved_at: int
    owner: str | None = None
    filters: tuple[str, ...] = ()


class Lag(Struct, frozen=True, gc=False):
    """How far a reader is behind in one shard, in unread records and in time.

    The count is exact for whole epochs; within an epoch, records are assumed to be spread evenly over its time.
    """

    records_max: int
    behind_us: int
    records_estimate: int


class Writes(Protocol):
    """What the readers need of the log."""

    def change(
        self,
        changes: Iterable[Change],
        *,
        on_commit: Callable[[], None],
        on_refused: Callable[[WriteRefusal], None],
    ) -> None:
        """Write rows with the next flush."""


def encode_place(place: ReaderPlace) -> bytes:
    """The value of a reader's row."""
    flags = _PINS if place.pins else 0
    owner = (place.owner or "").encode()
    if not place.filters:
        version = _VERSION if place.owner is None else _OWNED_VERSION
        return _ROW.pack(version, flags, place.position, place.saved_at) + owner
    flags |= 0 if place.owner is None else _OWNED
    head = _ROW.pack(_FILTERED_VERSION, flags, place.position, place.saved_at)
    return head + len(owner).to_bytes(2, "big") + owner + "\0".join(place.filters).encode()


def decode_place(value: bytes) -> ReaderPlace:
    """The position in a row's value; raises UsageError for a newer format, Corruption for an invalid row."""
    if value and value[0] > _FILTERED_VERSION:
        known = _FILTERED_VERSION
        raise UsageError(f"a reader's row has the format {value[0]}, newer than {known}", "use the newer version of braidmq")
    head, rest = value[: _ROW.size], value[_ROW.size :]
    if len(head) != _ROW.size or not head[0] or (rest and head[0] == _VERSION):
        raise Corruption("a reader's row has an unknown version")
    version, flags, position, saved_at = _ROW.unpack(head)
    is_owned = version == _OWNED_VERSION
    filters = b""
    if version == _FILTERED_VERSION:
        length = int.from_bytes(rest[:2], "big")
        is_owned, rest, filters = bool(flags & _OWNED), rest[2 : 2 + length], rest[2 + length :]
        if len(rest) != length or not filters:
            raise Corruption("a reader's row is truncated")
    try:
        owner = rest.decode() if is_owned else None
        return ReaderPlace(position, bool(flags & _PINS), saved_at, owner, tuple(filters.decode().split("\0")) if filters else ())
    except UnicodeDecodeError:
        raise Corruption("a reader's row has an owner or a filter that is not valid UTF-8") from None


class NamedReaders:
    """The named readers of a log. Created by `DurableLog`."""

    def __init__(self, log: Writes, shards: Sequence[Iterable[Shard]], now: Callable[[], int]) -> None:
        self._log = log
        self._shards = shards
        self._now = now
        self._places: dict[str, dict[int, ReaderPlace]] = {}
        # Saved but not on disk yet: they count towards the limit.
        self._coming: dict[str, int] = {}
        # The owner of each reader, including those not on disk yet, and the number of readers per owner; None: no owner.
        self._owners: dict[str, str | None] = {}
        self._owned: Counter[str | None] = Counter()

    def recover(self, shard: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of a shard."""
        for key, value in rows:
            name = key[len(READER_PREFIX) :].decode()
            places = self._places.setdefault(name, {})
            place = decode_place(value)
            # Usually the same in all shards: stored once.
            known = next((each.filters for each in places.values() if each.filters == place.filters), place.filters)
            places[shard] = structs.replace(place, filters=known)
            self._own(name, self.owner(name))

    def __len__(self) -> int:
        return len(self._places)

    @property
    def names(self) -> list[str]:
        """The names of all readers, sorted."""
        return sorted(self._places)

    def places(self, name: str) -> dict[int, ReaderPlace]:
        """The position, owner and filters of a reader, by shard; empty if there is no such reader."""
        return dict(self._places.get(name, {}))

    def positions(self, name: str) -> dict[int, int]:
        """The positions of a reader, by shard; empty if there is no such reader."""
        return {shard: place.position for shard, place in self._places.get(name, {}).items()}

    def owner(self, name: str) -> str | None:
        """The user who owns the reader; None if it has no owner or does not exist."""
        return next((place.owner for place in self._places.get(name, {}).values() if place.owner is not None), None)

    def is_owned_by(self, name: str, owner: str | None) -> bool:
        """Whether a reader of this name exists and counts for this owner; None means no owner."""
        return name in self._owners and self._owners[name] == owner

    def owned(self, owner: str | None) -> int:
        """How many readers a user has, including those not on disk yet; None counts those without an owner."""
        return self._owned[owner]

    def filters(self, name: str) -> tuple[str, ...]:
        """The filters that the reader declared last; empty if unknown."""
        places = self._places.get(name, {}).values()
        return max(places, key=lambda place: place.saved_at).filters if places else ()

    def lag(self, name: str) -> dict[int, Lag]:
        """The lag of a reader behind the watermark, by shard; in a shard without a position, all records count."""
        return self.lag_at(self.positions(name)) if name in self._places else {}

    def lag_at(self, positions: Mapping[int, int]) -> dict[int, Lag]:
        """The lag of a reader at these positions, by shard, as for a named reader."""
        return {number: _lag(shard, positions.get(number, 0)) for number, shard in enumerate(self._shards)}

    def pins(self, shard: int) -> list[int]:
        """The positions in a shard after which records are still needed."""
        found = (places.get(shard) for places in self._places.values())
        return [place.position for place in found if place is not None and place.pins]

    def save(
        self,
        name: str,
        positions: Mapping[int, int],
        *,
        owner: str | None = None,
        filters: Sequence[str] = (),
        pins: bool,
        on_saved: Callable[[], None],
        on_refused: Callable[[WriteRefusal], None],
    ) -> None:
        """Set a reader's positions in these shards, forwards or back; creates the reader if it does not exist.

        The caller checks permissions; the owner and the filters are stored with the positions.

        `on_saved` is called once they are on disk. Raises UsageError for an invalid name or position, or too many readers.
        """
        key = READER_PREFIX + _check_name(name)
        known = self._places.keys() | self._coming.keys()
        if name not in known and len(known) >= READERS_MAX:
            raise UsageError(f"there are already {READERS_MAX} named readers", "forget unused ones")
        if not positions:
            raise UsageError("a named reader needs a position in at least one shard")
        for shard, position in positions.items():
            if not 0 <= shard < len(self._shards) or not 0 <= position <= TIMESTAMP_MAX:
                raise UsageError(f"{position} in shard {shard} is not a position of this log")
        saved_at = self._now()
        kept = tuple(filters) if sum(len(each.encode()) + 1 for each in filters) <= _FILTERS_BYTES_MAX else ()
        places = {shard: ReaderPlace(position, pins, saved_at, owner, kept) for shard, position in positions.items()}
        changes = [Put(shard, key, encode_place(place)) for shard, place in places.items()]
        self._coming[name] = self._coming.get(name, 0) + 1
        self._own(name, owner)

        def adopt() -> None:
            self._arrived(name)
            self._places.setdefault(name, {}).update(places)
            on_saved()

        def refuse(refusal: WriteRefusal) -> None:
            self._arrived(name)
            self._settle_owner(name)
            on_refused(refusal)

        self._log.change(changes, on_commit=adopt, on_refused=refuse)

    def drop(self, name: str, *, on_dropped: Callable[[], None], on_refused: Callable[[WriteRefusal], None]) -> None:
        """Remove a reader and its pins from all shards; `on_dropped` is called once that is on disk."""
        key = READER_PREFIX + _check_name(name)
        changes = [Delete(shard, key) for shard in range(len(self._shards))]
        self._log.change(changes, on_commit=partial(self._dropped, name, on_dropped), on_refused=on_refused)

    def _dropped(self, name: str, on_dropped: Callable[[], None]) -> None:
        self._places.pop(name, None)
        self._settle_owner(name)
        on_dropped()

    def _own(self, name: str, owner: str | None) -> None:
        """Count the reader for this owner and for no other."""
        self._disown(name)
        self._owners[name] = owner
        self._owned[owner] += 1

    def _disown(self, name: str) -> None:
        if name in self._owners:
            owner = self._owners.pop(name)
            self._owned[owner] -= 1
            if not self._owned[owner]:
                del self._owned[owner]

    def _settle_owner(self, name: str) -> None:
        """A change of the reader failed, or it was removed: count what is on disk, unless more changes are pending."""
        if name in self._coming:
            return
        if name in self._places:
            self._own(name, self.owner(name))
        else:
            self._disown(name)

    def _arrived(self, name: str) -> None:
        self._coming[name] -= 1
        if not self._coming[name]:
            del self._coming[name]


def _lag(families: Iterable[Shard], position: int) -> Lag:
    records_max = behind_us = estimate = 0
    for family in families:
        # The watermark is the same for all families of a shard.
        if position < family.watermark:
            first = family.epochs.after(position)
            since = max(position, first.start - 1) if first is not None else family.watermark
            ahead = [epoch for epoch in family.epochs if epoch.end > position]
            records_max += sum(epoch.count for epoch in ahead)
            estimate += sum(_left(epoch, position) for epoch in ahead)
            behind_us = max(behind_us, family.watermark - since)
    return Lag(records_max, behind_us, estimate)


def _left(epoch: EpochRow, position: int) -> int:
    """The number of an epoch's records after the position, if they are spread evenly."""
    if position < epoch.start:
        return epoch.count
    return min(-(-epoch.count * (epoch.end - position) // (epoch.end - epoch.start)), epoch.count - 1) or 1


def _check_name(name: str) -> bytes:
    encoded = name.encode()
    if not 0 < len(encoded) <= NAME_BYTES_MAX:
        raise UsageError(f"the name of a reader must have 1 to {NAME_BYTES_MAX} bytes, not {len(encoded)}")
    return encoded
