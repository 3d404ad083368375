"""Identity rows of a database: the format version and the log id, in the default column family."""

from __future__ import annotations

import os
from pathlib import Path

from rocksdict import Rdict, WriteBatch

from braidmq.base.errors import ConfigError, Corruption, UsageError
from braidmq.storage.engine.rocksdb import DEFAULT_FAMILY

# Of everything in the directory. It rises by one whenever a row or a key changes its format; newer formats are not opened.
FORMAT_VERSION = 1

_FORMAT_KEY = b"format"
LOG_ID_KEY = b"log-id"


def identify(db: Rdict, path: Path, wanted: bytes = b"") -> bytes:
    """Check the format of the database, or write it into a new one, and return the log's id.

    ``wanted``: the id that it must have, and gets if it is new; empty: any. Raises ConfigError if it has another one.
    """
    row: bytes | None = db.get(_FORMAT_KEY)
    if row is None:
        # Created and interrupted before its first row: equivalent to a new one. Anything else is not a log, or is incomplete.
        if next(iter(db.keys()), None) is not None or Rdict.list_cf(str(path)) != [DEFAULT_FAMILY]:
            raise Corruption(f"the database in {path} has no format version; it is not a log, or it is incomplete")
        log_id = wanted or os.urandom(16)
        rows = WriteBatch(raw_mode=True)
        rows.put(_FORMAT_KEY, FORMAT_VERSION.to_bytes(4, "big"))
        rows.put(LOG_ID_KEY, log_id)
        db.write(rows)
        db.flush_wal(True)
        return log_id
    version = int.from_bytes(row, "big")
    if version > FORMAT_VERSION:
        raise UsageError(
            f"the log in {path} has format {version}, but this version of braidmq supports formats up to {FORMAT_VERSION}",
            "start the version that wrote it, or a newer one",
        )
    stored: bytes | None = db.get(LOG_ID_KEY)
    if stored is None or len(stored) != 16:
        raise Corruption(f"the log in {path} has lost its id")
    if wanted and stored != wanted:
        hint = "use a new data_dir, the node.cluster that the log belongs to, or restore it from its backup with --keep-log-id"
        raise ConfigError("node.data_dir", f"the log in {path} belongs to another cluster", hint)
    return stored
