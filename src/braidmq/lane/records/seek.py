"""Seek or step: how a scan of an epoch's pairs, in the order of their topic indexes, passes those that its query does not want.

This is the plain form and the contract; a build compiles ``seek.pyx`` to replace it.
"""

from __future__ import annotations

from typing import Protocol

# Why a scan stopped.
ENDED, PAUSED, FAR = 0, 1, 2
# Or what to do with a pair.
SKIP, TAKE = 3, 4

# A seek costs about as much as this many steps.
_NEAR = 32


class IndexQuery(Protocol):
    """The set of topic indexes that a scan searches for."""

    def matches(self, index: bytes, /) -> bool:
        """Whether the set contains this topic index."""

    def ratchet(self, index: bytes, /) -> bytes | None:
        """The smallest topic index of the set that is not below this one; None if there is none."""


class Seek:
    """Decides for one pair after the other whether to take it, to step over it, or to stop and seek to ``target``."""

    __slots__ = ("target", "_passed", "_query", "_seen")

    def __init__(self, query: IndexQuery) -> None:
        self.target = b""  # the topic index of the next possible match
        self._query = query
        self._seen = b""  # the last topic index that matched
        self._passed = 0  # steps since the target was set

    def examine(self, index: bytes) -> int:
        """TAKE or SKIP the pair with this topic index, or stop: FAR from the next possible match, or ENDED without one."""
        if index < self.target:
            self._passed += 1
            return FAR if self._passed >= _NEAR else SKIP
        if index != self._seen:
            if not self._query.matches(index):
                found = self._query.ratchet(index)
                self.target, self._passed = found or b"", 0
                return ENDED if found is None else SKIP
            self._seen = index
        return TAKE

    def is_ahead(self, index: bytes) -> bool:
        """Whether the next possible match is after this topic index, so that a paused scan should seek."""
        return index < self.target
