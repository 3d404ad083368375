"""``braidmq start`` as a process of its own, watched through its log."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType

from tests.support import through_node
from tests.support.clients.wire import Wire
from tests.support.pausing import pause

COMMAND = [sys.executable, "-c", "from braidmq.cli.main import main; main()"]
SOURCES = Path(__file__).resolve().parents[2] / "src"
DEADLINE_S = 20.0


def environment(**variables: str) -> dict[str, str]:
    """Ours, without what would configure a node, and with these. The history service is off: many nodes run at a time."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BRAIDMQ_") or name == "BRAIDMQ_PURE"}
    return {**kept, "PYTHONPATH": str(SOURCES), "BRAIDMQ_HISTORY__BIND": "", **variables}


def try_start(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Start a node that is expected not to come up."""
    command = [*COMMAND, "start", "-c", str(file), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment(), cwd=file.parent)


class Started:
    """A running node. A context manager; leaving it kills what still runs."""

    def __init__(
        self,
        file: Path,
        variables: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
        options: Sequence[str] = (),
    ) -> None:
        through = through_node.WORKER_OPTIONS if through_node.is_chosen() else ()
        self._process = subprocess.Popen(
            [*command, "start", "-c", str(file), *through, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**(variables or {})),
            cwd=file.parent,
        )
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def await_line(self, pattern: str) -> re.Match[str]:
        """The first line from now on that holds the pattern."""
        while True:
            try:
                line = self._lines.get(timeout=DEADLINE_S)
            except Empty:
                raise TimeoutError(f"no line with {pattern!r} within {DEADLINE_S:g} s after {self.log}") from None
            if line is None:
                raise AssertionError(f"the node ended without {pattern!r}: {self.log}")
            self.log.append(line)
            if found := re.search(pattern, line):
                return found

    def arrived(self) -> list[str]:
        """The lines from now on that are there already."""
        found: list[str] = []
        while not self._lines.empty() and (line := self._lines.get()) is not None:
            found.append(line)
        self.log += found
        return found

    def await_port(self) -> int:
        """The port of the default TCP listener, once it listens."""
        return int(self.await_line(r"tcp:default listens on [\d.]+:(\d+)")[1])

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def await_client(self, **fields: object) -> Wire:
        """A client, connected as soon as the node serves."""
        return Wire("127.0.0.1", self.await_port()).connect(**fields)  # type: ignore[arg-type]

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Let the process stand still until SIGCONT."""
        pause(self._process)

    def await_end(self) -> int:
        """The exit status; the rest of the log is read."""
        status = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        while (line := self._lines.get()) is not None:
            self.log.append(line)
        return status

    def ends_within(self, seconds: float) -> bool:
        """Whether the process ends by itself in this time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
