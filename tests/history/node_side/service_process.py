"""The process of a history service, as a test sees it from outside."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.started import Started


def child_of(parent: int) -> int:
    """The process of the service: the node's only child."""
    [child] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(child)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_that(what: str, condition: object, within_s: float = 20.0) -> None:
    """Poll for something that another process does silently."""
    deadline = time.monotonic() + within_s
    assert callable(condition)
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(0.02)


def start(file: Path, bind: str) -> Started:
    return Started(file, {"BRAIDMQ_HISTORY__BIND": bind})


def history_port_of(node: Started) -> int:
    return int(node.await_line(r"history listens on 127\.0\.0\.1:(\d+)")[1])
