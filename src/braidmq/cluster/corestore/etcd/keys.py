"""Where the rows of a cluster are in etcd: ``braidmq/<cluster> 0x00 <table> 0x00 <key>``.

Several clusters may share an etcd. A role for one of them needs `readwrite` on the prefix ``braidmq/<cluster>``.
"""

from __future__ import annotations

from typing import Final

_ROOT: Final = b"braidmq/"
_END: Final = b"\1"  # the byte after the 0x00 that ends a name, so that a range ends where the prefix does


class EtcdKeys:
    """The keys of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._name = _ROOT + cluster.encode()
        self._prefix = self._name + b"\0"

    def key(self, table: str, key: bytes) -> bytes:
        """The key of a row."""
        return self._prefix + table.encode() + b"\0" + key

    def table(self, table: str) -> tuple[bytes, bytes]:
        """The first key of a table, and the key after its last one."""
        name = self._prefix + table.encode()
        return name + b"\0", name + _END

    def all(self) -> tuple[bytes, bytes]:
        """The first key of the cluster, and the key after its last one."""
        return self._prefix, self._name + _END

    def split(self, key: bytes) -> tuple[str, bytes] | None:
        """Table and key of a row; None: it is not a row of the cluster."""
        if not key.startswith(self._prefix):
            return None
        table, separator, name = key[len(self._prefix) :].partition(b"\0")
        if not separator or not table or not name:
            return None
        return table.decode(errors="replace"), name
