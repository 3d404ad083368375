"""The contract of a layout: it turns a topic into the middle part of a record's key, and a filter into queries over keys.

    epoch start (8) | topic index | offset in the epoch (4)

An index orders the records of one epoch. Every layout guarantees three things:

- A topic keeps its index as long as its generation lasts, across restarts.
- No index is a prefix of another, although they differ in length. Keys therefore sort by index first, then by time.
- A plan misses nothing: every topic that the filter matches has an index that one of its queries matches. The reverse is not
  guaranteed; the reader matches the topic of each record against the filter.

To restore a layout, its name, its parameters, its rows and its next id must be stored. Rows belong to the batch of the first
record that needs them: call `index` for the records, then `take_rows`, and store both together with `next_id`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from braidmq.base.errors import Corruption, UsageError

EPOCH_BYTES: Final = 8
OFFSET_BYTES: Final = 4

# Topics whose index is cached, of at most 512 bytes each; about 8 MiB with typical ones.
CACHED_TOPICS_MAX: Final = 32_768

# The end of a row's key, after the generation, and its value.
Row = tuple[bytes, bytes]


class Query(Protocol):
    """A part of a plan: a set of indexes, walked in order."""

    @property
    def static(self) -> bytes | None:
        """The first four bytes of every matching index; None if they differ."""

    def matches(self, index: bytes, /) -> bool:
        """Whether the index is in the set."""

    def first(self) -> bytes:
        """The smallest index that matches."""

    def ratchet(self, index: bytes, /) -> bytes | None:
        """The smallest index that matches and is not below `index`; None if there is none."""


class Layout(Protocol):
    """The index of topics in one generation. Used from one thread."""

    name: str

    @property
    def next_id(self) -> int:
        """The first unused number, for the layout that follows this one or is restored after a restart."""

    def index(self, topic: bytes, /) -> bytes:
        """The index of a topic for writing a record; may learn from it, see `take_rows`."""

    def take_rows(self) -> list[Row]:
        """The rows that indexes returned since the last call depend on; they go into the same batch as the records."""

    def return_rows(self, rows: Iterable[Row]) -> None:
        """Return rows of a batch that was not written; the next `take_rows` includes them again."""

    def plan(self, topic_filter: str) -> list[Query]:
        """Queries that together match every topic of the filter; sorted, and no index matches two of them.

        The list may be shared and must not be changed.
        """

    def parameters(self) -> bytes:
        """What `make_layout` needs in addition to the rows; begins with a version."""

    def describe(self) -> str:
        """A readable description of the parameters, for operators."""

    def inherit(self, parameters: bytes = b"") -> Layout:
        """A layout of the same name for a new generation, with what was learned; its rows are still to be taken.

        Empty parameters mean the same ones. Ids continue from `next_id`.
        """


def index_of(key: bytes) -> bytes:
    """The topic index in a record's key."""
    return key[EPOCH_BYTES:-OFFSET_BYTES]


def check_version(what: str, data: bytes, known: int) -> None:
    """Raise unless `data` begins with a version that this program supports; `known` is the newest."""
    if not data or data[0] == 0:
        raise Corruption(f"the stored {what} layout has no version")
    if data[0] > known:
        detail = f"the stored {what} layout has version {data[0]}, but this version of braidmq supports {known}"
        raise UsageError(detail, "open it with the version of braidmq that wrote it")
