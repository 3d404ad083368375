"""A store in memory that can fail, crash and be opened again; it counts what is read of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from braidmq.base.errors import Unavailable

Change = tuple[str, str, bytes, bytes]


class FakeBatch:
    """Changes in the order they were made."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def put(self, family: str, key: bytes, value: bytes) -> None:
        self.changes.append(("put", family, key, value))

    def put_all(self, family: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in rows:
            self.put(family, key, value)

    def delete(self, family: str, key: bytes) -> None:
        self.changes.append(("delete", family, key, b""))

    def delete_range(self, family: str, lower: bytes, upper: bytes) -> None:
        self.changes.append(("delete_range", family, lower, upper))


class FakeStore:
    """Rows by family; every write is kept, so that a crash can lose the last ones."""

    def __init__(self) -> None:
        self.writes: list[list[Change]] = []
        self.committed = 0
        self.fails = False
        self.seeks = 0
        self.records_read = 0
        self._rows: dict[str, dict[bytes, bytes]] = {}
        self._order: dict[str, list[bytes]] = {}

    def batch(self) -> FakeBatch:
        return FakeBatch()

    def write(self, batch: FakeBatch) -> int:
        if self.fails:
            raise Unavailable("the disk is full")
        self._apply(batch.changes)
        return len(self.writes)

    def get(self, family: str, key: bytes) -> bytes | None:
        self.records_read += key < b"\xe0"
        return self._rows.get(family, {}).get(key)

    def items(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.seeks += 1
        rows = dict(self._rows.get(family, {}))  # like an iterator of the real one, it does not see later writes
        if family not in self._order:
            self._order[family] = sorted(rows)
        for key in self._order[family]:
            if lower <= key < upper:
                self.records_read += key < b"\xe0"
                yield key, rows[key]

    def crashed(self, kept: int) -> FakeStore:
        """The store as it is opened after a crash that kept the first ``kept`` writes."""
        assert self.committed <= kept <= len(self.writes)
        opened = FakeStore()
        for changes in self.writes[:kept]:
            opened._apply(changes)
        opened.committed = kept
        return opened

    def _apply(self, changes: list[Change]) -> None:
        self.writes.append(changes)
        for kind, family, key, value in changes:
            rows = self._rows.setdefault(family, {})
            self._order.pop(family, None)
            if kind == "put":
                rows[key] = value
            elif kind == "delete":
                rows.pop(key, None)
            else:
                for each in [each for each in rows if key <= each < value]:
                    del rows[each]
