"""Whether etcd still is the store that this node knows, as a state machine without I/O (C8).

A backup that is put back takes commits away that this node has seen. What shows it:

- The cluster id in an answer's header is another one. (It stays the same if members are restored with the same names and token.)
- The revision of an answer is below one that was known *before its request was sent*. Answers to requests that were under way
  together may overtake each other, so they are not compared. Only linearizable answers count: a watch is served by a member that
  may lag behind.
- The *witness*, the latest row that this node has seen written, is not what it was at its revision. This holds even if the
  restored store has passed that revision again, in another history.
- The counter of restores in the store is not the one known: another core has noticed a restore and accepted it.

From then on every call is refused until the node accepts the restore: it takes a new identity, counts the restore in the store,
lists all tables anew, and writes back the incarnations, death rows and terms it knows (C27).
"""

from __future__ import annotations

import hashlib

from msgspec import Struct

from braidmq.base.errors import BraidError
from braidmq.cluster.corestore.etcd.messages import EtcdHeader, EtcdRow


class Witness(Struct, frozen=True, array_like=True):
    """A row as it was written by a revision."""

    key: bytes
    revision: int
    digest: bytes


class StoreMark(Struct, frozen=True, array_like=True):
    """What a node knows of its store; kept over restarts it lets the node notice a restore that happened while it was down."""

    cluster_id: int
    restores: int
    revision: int
    witness: Witness | None = None


class StoreRestored(BraidError):
    """The store is another one, or was restored from a backup: what this node knows of its tables is not valid any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"etcd is not as this node knows it: {self.reason}; it was restored from a backup, or cluster.etcd names another one"
        )


class StoreIdentity:
    """Follows the answers of one store."""

    def __init__(self, known: StoreMark | None = None) -> None:
        self._cluster_id = 0 if known is None else known.cluster_id
        self._revision = 0 if known is None else known.revision
        self._restores = None if known is None else known.restores
        self._witness = None if known is None else known.witness
        self._problem = ""

    @property
    def revision(self) -> int:
        """The highest revision known; an answer to a request that is sent now has at least this one."""
        return self._revision

    @property
    def witness(self) -> Witness | None:
        """The row to read as of its revision, and to show to `on_witness`; None: there is none yet."""
        return self._witness

    @property
    def mark(self) -> StoreMark | None:
        """What to keep over a restart; None before the first answers."""
        if not self._cluster_id or self._restores is None:
            return None
        return StoreMark(self._cluster_id, self._restores, self._revision, self._witness)

    @property
    def incarnation(self) -> tuple[int, int]:
        """Cluster id and number of restores: positions are compared only within the same."""
        return self._cluster_id, self._restores or 0

    def check(self) -> None:
        """Raise StoreRestored if a restore was noticed and not accepted."""
        if self._problem:
            raise StoreRestored(self._problem)

    def on_header(self, header: EtcdHeader) -> None:
        """An answer that may come from a member that lags behind. Raises StoreRestored."""
        self.check()
        if not self._cluster_id:
            self._cluster_id = header.cluster_id
        if header.cluster_id != self._cluster_id:
            self._refuse(f"its cluster id is {header.cluster_id:x} and was {self._cluster_id:x}")

    def on_linearizable(self, header: EtcdHeader, known_when_sent: int) -> None:
        """An answer with everything that was committed when its request was sent. Raises StoreRestored."""
        self.on_header(header)
        if header.revision < known_when_sent:
            self._refuse(f"its revision is {header.revision} and was {known_when_sent}")
        self._revision = max(self._revision, header.revision)

    def on_restores(self, restores: int) -> None:
        """The counter of restores was read. Raises StoreRestored."""
        self.check()
        if self._restores is None:
            self._restores = restores
        if restores != self._restores:
            self._refuse(f"its counter of restores is {restores} and was {self._restores}")

    def on_written(self, key: bytes, revision: int, value: bytes) -> None:
        """A row was written, by this node or another one."""
        self._revision = max(self._revision, revision)
        if self._witness is None or revision > self._witness.revision:
            self._witness = Witness(key, revision, _digest(value))

    def on_witness(self, row: EtcdRow | None, witness: Witness) -> None:
        """The witness as it is now at its revision; None: it is not there. Raises StoreRestored."""
        self.check()
        if row is None or row.mod_revision != witness.revision or _digest(row.value) != witness.digest:
            self._refuse(f"its revision {witness.revision} has another content")

    def on_witness_missing(self, witness: Witness) -> None:
        """The store has not reached the revision of the witness. Raises StoreRestored."""
        self._refuse(f"it has no revision {witness.revision}, which this node has seen")

    def on_witness_compacted(self, witness: Witness) -> None:
        """The store no longer keeps the revision of the witness, so it proves nothing."""
        if self._witness == witness:
            self._witness = None

    def on_counted(self, restores: int) -> None:
        """A restore was accepted and counted."""
        self._restores = restores

    def _refuse(self, reason: str) -> None:
        self._problem = reason
        raise StoreRestored(reason)


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
