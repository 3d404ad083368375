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
        """Read the file at once, blocking; a file that cannot be used is logged, not raised."""
        self.key = key
        self.path = path
        self.value: T | None = None
        self.problem = ""
        self._parse = parse
        self._seen: files.Signature | None = None  # of what ``value`` and ``problem`` come from
        self._settling: files.Signature | None = None  # of a change that is not taken yet
        self._reading = asyncio.Lock()
        self._take(self._read())

    async def reload(self) -> None:
        """Read the file again now."""
        async with self._reading:
            self._take(await asyncio.to_thread(self._read))

    async def reload_if_changed(self) -> bool:
        """Read the file again if it is another than before and was left alone since the last call; True when it was read."""
        async with self._reading:
            now = await asyncio.to_thread(files.signature, self.path)
            if now == self._seen:
                self._settling = now
                return False
            # A file is often written in two steps, empty first: what is still moving is not believed yet.
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
