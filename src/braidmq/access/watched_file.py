"""A file that is reread when it changes; while it is invalid there is no value, and its owner must deny access."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from braidmq.access import files
from braidmq.base.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """The parsed content of one file. ``value`` is None while it is missing, unreadable or broken; ``problem`` says why."""

    def __init__(self, key: str, path: str, parse: Callable[[str], T]) -> None:
        """Read the file, blocking; an unusable file is logged and does not raise."""
        self.key = key
        self.path = path
        self.value: T | None = None
        self.problem = ""
        self._parse = parse
        self._seen: files.Signature | None = None  # of the content behind ``value`` and ``problem``
        self._settling: files.Signature | None = None  # of a change that is not yet applied
        self._reading = asyncio.Lock()
        self._take(self._read())

    async def reload(self) -> None:
        """Reread the file now."""
        async with self._reading:
            self._take(await asyncio.to_thread(self._read))

    async def reload_if_changed(self) -> bool:
        """Reread the file if it has changed, and not changed again since the last call; returns whether it was read."""
        async with self._reading:
            now = await asyncio.to_thread(files.signature, self.path)
            if now == self._seen:
                self._settling = now
                return False
            # Programs often write a file in two steps, empty first, so a file that is still changing is not read yet.
            is_settled, self._settling = now == self._settling, now
            if is_settled:
                self._take(await asyncio.to_thread(self._read))
            return is_settled

    def _read(self) -> tuple[T | None, str, files.Signature | None]:
        seen = files.signature(self.path)
        try:
            text, seen = files.read_text(self.path)
            return self._parse(text), "", seen
        except OSError as error:
            return None, f"{self.key}: {self.path} cannot be read: {error.strerror or error}", seen
        except UnicodeDecodeError:
            return None, f"{self.key}: {self.path} is not UTF-8", seen
        except ConfigError as error:
            return None, f"{self.path}: {error}", seen

    def _take(self, reading: tuple[T | None, str, files.Signature | None]) -> None:
        value, problem, self._seen = reading
        self._settling = self._seen
        if problem and problem != self.problem:
            log.error("all clients are rejected until this is fixed: %s", problem)
        elif self.problem and not problem:
            log.warning("%s is valid again", self.path)
        self.value, self.problem = value, problem
