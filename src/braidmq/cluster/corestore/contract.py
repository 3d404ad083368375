"""What a core store does: small tables of a cluster, strongly consistent, with one order of all commits.

Members, deaths and terms are kept here; nothing per client, subscription or message. Every commit has a *position*, a number that
rises. A row's *revision* is the position of the commit that wrote it, so a change can depend on what its author has read:

    row = await store.get("members", b"r1")
    position = await store.commit([Condition("members", b"r1", revision_of(row))], [PutRow("members", b"r1", b"...")])
    # None: another commit was faster; read again and decide again

A row may be bound to a *lease*, which ends when it is not renewed in time; its rows are then removed, in a commit of their own.
So a condition that such a row is absent means: its owner has lost the lease.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

from msgspec import Struct

from braidmq.base.errors import BraidError, UsageError

ABSENT: Final = 0  # the revision of a row that does not exist
TABLE_BYTES_MAX: Final = 64
KEY_BYTES_MAX: Final = 1024
VALUE_BYTES_MAX: Final = 256 * 1024
# What etcd accepts in one transaction by default: 128 operations, and 1.5 MiB with everything around them.
COMMIT_ROWS_MAX: Final = 128
COMMIT_BYTES_MAX: Final = 1024 * 1024


class CoreRow(Struct, frozen=True, gc=False):
    """A row as it was read."""

    value: bytes
    revision: int


class Condition(Struct, frozen=True, gc=False):
    """A row still has this revision; ``ABSENT``: it does not exist."""

    table: str
    key: bytes
    revision: int


class PutRow(Struct, frozen=True, gc=False):
    """Set a row. ``lease``: the row ends with it; 0: it stays until it is removed."""

    table: str
    key: bytes
    value: bytes
    lease: int = 0


class DeleteRow(Struct, frozen=True, gc=False):
    """Remove a row, if it exists."""

    table: str
    key: bytes


RowWrite = PutRow | DeleteRow


class CoreCommit(Struct, frozen=True, gc=False):
    """What one commit wrote."""

    position: int
    writes: tuple[RowWrite, ...]


class TableRows(Struct, frozen=True, gc=False):
    """All rows of a table by key, as of a position."""

    position: int
    rows: dict[bytes, CoreRow]


class CommitsMissed(BraidError):
    """The stream no longer reaches back to the position asked for: list the tables again, and watch from there."""


class CoreStore(Protocol):
    """The tables. Every call raises Unavailable if the store does not answer; a commit is then in doubt."""

    async def get(self, table: str, key: bytes) -> CoreRow | None:
        """A row; None if it does not exist."""
        ...

    async def list_rows(self, table: str) -> TableRows:
        """All rows of a table."""
        ...

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        """Write all rows if all conditions hold: the position of the commit, which is durable; None: one did not hold.

        A lease that a row is bound to must not have ended; that is a condition, too. Removing only rows that do not exist may
        count as no commit: the position is then that of the latest. Raises UsageError for a name, key or value that is too long,
        for too many rows, and for two writes of one row.
        """
        ...

    def watch(self, after: int) -> AsyncGenerator[CoreCommit, None]:
        """The commits above a position, in order, without end. Raises CommitsMissed, also when the reader is too slow.

        While the store does not answer, the reader waits. Close it with `aclose`.
        """
        ...

    async def grant_lease(self, ttl_s: float) -> int:
        """A new lease, which ends when it is not renewed for this time, or somewhat later."""
        ...

    async def renew_lease(self, lease: int) -> bool:
        """Let a lease last for its whole time again; False: it has ended, and its rows are gone or about to go."""
        ...

    async def end_lease(self, lease: int) -> None:
        """End a lease now, with its rows; it may have ended."""
        ...


def revision_of(row: CoreRow | None) -> int:
    """The revision for a condition that the row is as it was read."""
    return ABSENT if row is None else row.revision


def check_writes(writes: Sequence[RowWrite]) -> None:
    """Raise UsageError if a store cannot write these rows together."""
    if not writes:
        raise UsageError("a commit needs at least one row")
    if len(writes) > COMMIT_ROWS_MAX:
        raise UsageError(f"a commit has at most {COMMIT_ROWS_MAX} rows, not {len(writes)}")
    if len({(write.table, write.key) for write in writes}) < len(writes):
        raise UsageError("a commit writes a row twice")
    for write in writes:
        name = write.table.encode()
        if not name or len(name) > TABLE_BYTES_MAX or b"\0" in name:
            raise UsageError(f"{write.table!r} is not the name of a table")
        if not write.key or len(write.key) > KEY_BYTES_MAX:
            raise UsageError(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(write.key)}")
        if isinstance(write, PutRow) and len(write.value) > VALUE_BYTES_MAX:
            raise UsageError(f"a row has at most {VALUE_BYTES_MAX} bytes, not {len(write.value)}")
    total_bytes = sum(len(write.key) + len(write.value) for write in writes if isinstance(write, PutRow))
    if total_bytes > COMMIT_BYTES_MAX:
        raise UsageError(f"a commit has at most {COMMIT_BYTES_MAX} bytes, not {total_bytes}")


def check_conditions(conditions: Sequence[Condition]) -> None:
    """Raise UsageError if a store cannot judge these conditions together."""
    if len(conditions) > COMMIT_ROWS_MAX:
        raise UsageError(f"a commit has at most {COMMIT_ROWS_MAX} conditions, not {len(conditions)}")
