"""Which topics had a live retained message on this node while a page of retained messages was on its way, or was waiting here.

What the page has for such a topic is older: its subscriber has been offered the live message, or reads it from the log (S9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

SEEN_MAX: Final = 10_000  # topics noted while pages are on their way; beyond it these pages are asked for again


class _Held(Struct, gc=False):
    """A topic of pages that wait for their clients."""

    pages: int = 0
    last: int = 0  # the number of its last live message


class LiveTopics:
    """Numbers live retained messages while pages need it."""

    def __init__(self, listen: Callable[[Callable[[bytes], None] | None], None]) -> None:
        """``listen`` sets what is called with the topic of each live retained message, or None."""
        self._listen = listen
        self._last = 0
        self._asked = 0  # pages on their way
        self._seen: dict[bytes, int] = {}  # topics since the first of these was asked for
        self._forgotten = 0  # nothing is known of what came before this number
        self._held: dict[bytes, _Held] = {}

    def __len__(self) -> int:
        return len(self._seen) + len(self._held)

    def note(self, topic: bytes) -> None:
        """A live retained message is about to be delivered here."""
        self._last += 1
        held = self._held.get(topic)
        if held is not None:
            held.last = self._last
        if self._asked:
            self._seen[topic] = self._last
            if len(self._seen) > SEEN_MAX:
                self._seen.clear()
                self._forgotten = self._last

    def ask(self) -> int:
        """A page is asked for; ``arrive`` follows with the number."""
        self._asked += 1
        self._listen(self.note)
        return self._last

    def arrive(self) -> None:
        """The page is there, or will not come; what it has was judged, and is held."""
        self._asked -= 1
        if not self._asked:
            self._seen.clear()
        self._rest()

    def knows(self, asked: int) -> bool:
        """Whether all topics since then are known. If not, the page must be asked for again."""
        return asked >= self._forgotten

    def is_newer(self, topic: bytes, asked: int) -> bool:
        """Whether the topic had a live message since a page was asked for that has just arrived."""
        return self._seen.get(topic, 0) > asked

    def hold(self, topics: Iterable[bytes]) -> int:
        """These wait here from now on; ``release`` follows for each with the number."""
        for topic in topics:
            self._held.setdefault(topic, _Held()).pages += 1
        return self._last

    def release(self, topic: bytes, since: int) -> bool:
        """It waits no longer; whether it has had no live message meanwhile."""
        held = self._held[topic]
        held.pages -= 1
        if not held.pages:
            del self._held[topic]
            self._rest()
        return held.last <= since

    def _rest(self) -> None:
        if not self._asked and not self._held:
            self._listen(None)
