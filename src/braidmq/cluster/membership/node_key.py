"""The key that identifies a node over restarts: random bytes in a file of its data or run directory."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from braidmq.base.errors import ConfigError

KEY_NAME: Final = "node.key"
_KEY_BYTES: Final = 32


def read_or_make_key(directory: Path) -> bytes:
    """The key in the directory, a new one if there is none. Blocks. Raises ConfigError."""
    path = directory / KEY_NAME
    try:
        try:
            key = path.read_bytes()
        except FileNotFoundError:
            return _make_key(path)
    except OSError as problem:
        raise ConfigError("node.data_dir", f"cannot read or write {path}: {problem.strerror}") from None
    if len(key) != _KEY_BYTES:
        raise ConfigError("node.data_dir", f"{path} is not the key of a node", "remove it: the node then gets a new identity")
    return key


def _make_key(path: Path) -> bytes:
    key = secrets.token_bytes(_KEY_BYTES)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)  # a crash leaves a whole key or none
    return key
