"""Where a reader of etcd's events is, as a state machine without I/O.

The next revision to ask for is the last one *applied*, or that of a note of progress, + 1; never that of the answer that says
the watch was created, which may be far ahead of its events. All events of one revision are one commit and are passed on together:

- An answer holds whole revisions, in order, unless it says that it is a part: then the next one continues it.
- A stream that breaks between parts is resumed at the revision after the last whole answer.
- An event below the revision asked for is dropped: some versions of etcd send such to a watch from a future revision (PR 20245).
- A compaction beyond the position ends the reader: it lists the tables again.
"""

from __future__ import annotations

from itertools import groupby

from braidmq.base.errors import BraidError
from braidmq.cluster.corestore.contract import CommitsMissed, CoreCommit, DeleteRow, PutRow, RowWrite
from braidmq.cluster.corestore.etcd.keys import EtcdKeys
from braidmq.cluster.corestore.etcd.messages import EtcdEvent, WatchAnswer


class WatchCancelled(BraidError):
    """etcd has ended the watch; it may be opened again. ``reason``: etcd's words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WatchCursor:
    """The position of one reader."""

    def __init__(self, after: int, keys: EtcdKeys) -> None:
        self.position = after
        self._keys = keys
        self._parts: list[EtcdEvent] = []
        self._watch_id: int | None = None

    def open(self) -> int:
        """A new stream begins: returns the revision to ask for. What came of an answer in parts will come again."""
        self._parts.clear()
        self._watch_id = None
        return self.position + 1

    def take(self, answer: WatchAnswer) -> list[CoreCommit]:
        """The commits that an answer completes. Raises CommitsMissed, or WatchCancelled."""
        if answer.is_created and self._watch_id is None:
            self._watch_id = answer.watch_id
        if answer.compact_revision:
            raise CommitsMissed(f"etcd keeps commits from {answer.compact_revision} on, not those after {self.position}")
        if answer.is_cancelled:
            raise WatchCancelled(answer.cancel_reason)
        if answer.is_created or answer.watch_id != self._watch_id:
            return []  # a sign of life that was asked for has no watch id; its revision may overtake events (etcd issue 15220)
        self._parts.extend(answer.events)
        if answer.is_part:
            return []
        events, self._parts = self._parts, []
        commits = []
        for revision, group in groupby(events, key=lambda event: event.row.mod_revision):
            if revision > self.position:
                writes = tuple(write for event in group if (write := self._write(event)) is not None)
                commits.append(CoreCommit(revision, writes))
                self.position = revision
        if not events:
            self.position = max(self.position, answer.header.revision)
        return commits

    def _write(self, event: EtcdEvent) -> RowWrite | None:
        place = self._keys.split(event.row.key)
        if place is None:
            return None
        if event.is_deleted:
            return DeleteRow(*place)
        return PutRow(*place, event.row.value, event.row.lease)
