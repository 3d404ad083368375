"""Dead letters: rows that the broker rejected, as JSON lines with everything needed to examine and resend them.

A line is written before the row's number is given up, so no row is lost with a task. A task that runs again may write the same
line again, with the same producer, batch, partition and row.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import fs

from braidmq.base.errors import UsageError


class DeadLetter(msgspec.Struct, frozen=True):
    """A rejected row. `payload` is base64."""

    producer: str
    batch: int
    partition: int
    row: int
    topic: str | None
    payload: str
    qos: int
    reason: int
    detail: str


def make_letter(row: dict[str, Any], topic: bytes | None, payload: bytes) -> DeadLetter:
    """Make the letter of a row; `row` has the fields other than topic and payload."""
    name = None if topic is None else topic.decode(errors="replace")
    return DeadLetter(topic=name, payload=base64.b64encode(payload).decode(), **row)


class DeadLetters:
    """The letters of one attempt at a partition: `<path>/<producer>/batch=<n>/part-<partition>-<attempt>.jsonl`."""

    def __init__(self, path: str, producer: str, batch: int, partition: int, attempt: str) -> None:
        self.count = 0
        self._waiting: list[DeadLetter] = []
        self._path = path
        self._parts = (producer, f"batch={batch}", f"part-{partition:05d}-{attempt}")
        self._files = 0

    def add(self, letter: DeadLetter) -> None:
        """Add a letter; it is durable after `flush`."""
        self._waiting.append(letter)
        self.count += 1

    def flush(self) -> None:
        """Write pending letters; raises UsageError if that fails."""
        if not self._waiting:
            return
        lines = b"".join(json.dumps(msgspec.structs.asdict(letter)).encode() + b"\n" for letter in self._waiting)
        try:
            self._write(lines)
        except (OSError, pa.ArrowException) as problem:
            raise UsageError(f"rejected rows cannot be written to {self._path}: {problem}", "see deadLetterPath") from None
        self._waiting.clear()

    def _write(self, lines: bytes) -> None:
        folder, *rest = self._parts
        if "://" not in self._path:
            # Append to one file, since there may be a flush per row.
            directory = os.path.join(self._path, folder, rest[0])
            os.makedirs(directory, exist_ok=True)
            with open(os.path.join(directory, f"{rest[1]}.jsonl"), "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            return
        system, root = fs.FileSystem.from_uri(self._path)
        system.create_dir(f"{root}/{folder}/{rest[0]}", recursive=True)
        self._files += 1
        with system.open_output_stream(f"{root}/{folder}/{rest[0]}/{rest[1]}-{self._files:05d}.jsonl") as stream:
            stream.write(lines)
