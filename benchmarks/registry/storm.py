"""The load generator, and what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec


class Burst(msgspec.Struct):
    """What became of a command; times in milliseconds, counts by reason code. ``last``: the client that was left of a crowd."""

    wanted: int = 0
    connected: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    closed: int = 0
    retries: int = 0
    alive: int = 0
    last: int = -1
    refused: dict[int, int] = {}
    disconnected: dict[int, int] = {}
    percentiles_ms: list[float] = []
    part: int = 0

    @property
    def per_s(self) -> float:
        """Clients connected per second."""
        return self.connected / self.seconds if self.seconds else 0.0


class Storm:
    """Clients of a program of their own; its connections end with it."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def open(
        self,
        first: int,
        count: int,
        ports: Sequence[int],
        *,
        at_once: int = 200,
        is_durable: bool = False,
        retry_ms: int = 0,
        timeout_s: int = 120,
        part: int = 0,
        on_part: Callable[[], None] | None = None,
    ) -> Burst:
        """Connect clients; each to the port of its turn. ``on_part`` is called when ``part`` of them are connected."""
        clean, expiry = (0, 7200) if is_durable else (1, 0)
        self._say("open", first, count, at_once, clean, expiry, retry_ms, timeout_s, part, *ports)
        answer = self._answer()
        if answer.part:
            if on_part is not None:
                on_part()
            answer = self._answer()
        return answer

    def crowd(self, count: int, ports: Sequence[int], *, late_ms: int, timeout_s: int = 90) -> Burst:
        """Connect clients with one client id at once; the last one somewhat later."""
        self._say("crowd", count, late_ms, timeout_s, *ports)
        return self._answer()

    def drop(self) -> None:
        """End all connections."""
        self._say("drop")
        self._answer()

    def _say(self, *words: str | int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Burst:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load generator has ended")
        return msgspec.json.decode(line, type=Burst, strict=False)
