"""What a core knows of its core store over a restart: so it notices that etcd was restored while it was down (C8, C27)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from braidmq.base.errors import ConfigError
from braidmq.cluster.corestore.etcd.identity import StoreMark

MEMORY_NAME: Final = "cluster.state"
_VERSION: Final = 1


class CoreMemory(Struct, frozen=True):
    """``terms``: the last ones that this core has taken, by shard."""

    mark: StoreMark | None = None
    terms: dict[int, int] = {}
    version: int = _VERSION


def read_memory(directory: Path) -> CoreMemory:
    """What an earlier process has written; empty for a new core. Blocks. Raises ConfigError."""
    path = directory / MEMORY_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=CoreMemory)
    except FileNotFoundError:
        return CoreMemory()
    except OSError as problem:
        raise ConfigError("node.data_dir", f"cannot read {path}: {problem.strerror}") from None
    except msgspec.DecodeError:
        hint = "remove it, unless etcd was restored from a backup while this node was down"
        raise ConfigError("node.data_dir", f"{path} is not what a core has written", hint) from None


def write_memory(directory: Path, memory: CoreMemory) -> None:
    """Keep it for the next process. Blocks. Raises OSError."""
    path = directory / MEMORY_NAME
    temporary = path.with_suffix(".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(memory))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)  # a crash leaves the old one or the new one
