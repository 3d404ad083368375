"""A node in a directory of its own that the tests of faults start, kill, and look into when it is down."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import tomli_w

from braidmq.base.config.settings import HistorySettings
from braidmq.lane.records.records import Record
from braidmq.storage.log import DurableLog
from tests.durability.campaigns import power
from tests.support.clients.wire import Wire
from tests.support.started import Started

POWERED = [sys.executable, "-P", power.__file__]

CONFIG: dict[str, object] = {
    "node": {"data_dir": "data"},
    "listeners": {"tcp": {"default": {"bind": "127.0.0.1:0"}}},
    "api": {"bind": ""},
}


def write_config(folder: Path, **tables: dict[str, object]) -> Path:
    """The configuration of a node whose data is in ``folder``/data; tables replace ours."""
    file = folder / "braidmq.toml"
    file.write_text(tomli_w.dumps({**CONFIG, **tables}))
    return file


def log_dir(file: Path) -> Path:
    """Where the node with this configuration keeps its log."""
    return file.parent / "data" / "log"


def start(file: Path) -> Started:
    """Start a node that notes what it has synced."""
    return Started(file, command=POWERED)


def kill(node: Started) -> None:
    """kill -9, and wait until it is dead."""
    node.send(signal.SIGKILL)
    assert node.await_end() == -signal.SIGKILL


def errors_in(log: list[str]) -> list[str]:
    """Errors that a node has logged, without their time, each with the traceback below it."""
    entries = re.split(r"^\d{4}-\d\d-\d\d [\d:,]+ ", "\n".join(log), flags=re.M)
    return [entry for entry in entries if entry.startswith("error") or "Traceback" in entry]


def stop(node: Started) -> None:
    """Stop it as an operator does; nothing may have gone wrong."""
    node.send(signal.SIGTERM)
    assert node.await_end() == 0, node.log
    assert errors_in(node.log) == []


def client(port: int, version: int = 5, **fields: object) -> Wire:
    """A connected client."""
    return Wire("127.0.0.1", port, version).connect(**fields)  # type: ignore[arg-type]


def read_log(file: Path, topic_filter: str = "#", history: Mapping[str, object] | None = None) -> list[Record]:
    """What is in the log of a node that is down, in order of time; ``history`` as in its configuration."""
    return read_data(file.parent / "data", topic_filter, history)


def read_data(data_dir: Path, topic_filter: str = "#", history: Mapping[str, object] | None = None) -> list[Record]:
    """The same for a data directory."""
    log = DurableLog.open(data_dir, msgspec.convert(history or {}, HistorySettings))
    try:
        replay = log.replay([topic_filter], 0, with_session_only=True)
        found: list[Record] = []
        while not replay.is_caught_up:
            found += [record for _, record in replay.next(1000)]
        del replay  # it would keep the directory locked
    finally:
        log.close()
    return found
