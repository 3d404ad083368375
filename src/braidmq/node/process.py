"""What nodes of every role do with their process: its directory and its file descriptors."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import resource
import stat
from pathlib import Path
from typing import Final

from braidmq.base.errors import ConfigError
from braidmq.base.file_descriptors import FilePlan, Room, plan_files
from braidmq.lane import is_compiled

log = logging.getLogger("braidmq.node")

_FILE_TABLE_MAX: Final = 65_536  # entries of 8 bytes


class Rooms:
    """How many connections of each kind the process has file descriptors for."""

    def __init__(self) -> None:
        self.clients, self.api, self.control = Room(), Room(), Room()

    def furnish(self) -> FilePlan:
        """Raise the limit of open files and divide it."""
        files_max = _raise_file_limit()
        grow_file_table(files_max)
        files = plan_files(files_max)
        self.clients.connections_max = files.clients
        self.api.connections_max = files.api
        self.control.connections_max = files.control
        log.info("room for %d client and %d API connections (RLIMIT_NOFILE %d)", files.clients, files.api, files_max)
        return files


def grow_file_table(files_max: int) -> None:
    """Let the kernel make room for this many descriptors now; called before the process has threads.

    It doubles its table when that is full. With several threads it then waits until no processor uses the old one: up to 25 ms,
    in whatever call needs a descriptor, such as the loop's ``accept``.
    """
    with open(os.devnull, "rb") as file:
        os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, min(files_max, _FILE_TABLE_MAX) - 1))


def warn_if_slow() -> None:
    """Say that the compiled lane is missing."""
    if not is_compiled():
        log.warning("the fast lane is not compiled, so the node is slow; install a C compiler and reinstall braidmq")


def make_data_dir(data_dir: Path) -> None:
    """Create the directory, and warn if other users can write to it. Raises ConfigError. Blocks."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("node.data_dir", f"cannot create {data_dir}: {error.strerror}", "choose another directory") from None
    for folder in (data_dir, data_dir / "log"):
        mode = stat.S_IMODE(folder.stat().st_mode) if folder.exists() else 0
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            others = "every user of this machine" if mode & stat.S_IWOTH else "its group"
            log.warning("node.data_dir: %s (mode %04o) is writable by %s; run chmod 700 on it", folder, mode, others)


def report_death(task: asyncio.Task[None]) -> None:
    """Report a background task that died: the loop's handler logs it as an error."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the watcher of access files died", "exception": error, "task": task})


def _raise_file_limit() -> int:
    """Raise the limit of open files, since every connection is a file, as far as the system allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1_048_576
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    return soft
