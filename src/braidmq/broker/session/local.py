"""The ports of ``broker.session.ports`` for a node that is alone."""

from __future__ import annotations

from collections.abc import Callable
from time import time

from braidmq.broker.ports import Fences
from braidmq.broker.session.ports import Claim, Grant, GrantEnding


class LocalRegistry:
    """Grants every claim at once: the newest wins. ``Session.connection`` in the session table is the owner of a client id."""

    def __init__(self, fences: Fences) -> None:
        self._fences = fences

    def claim(self, claim: Claim) -> Grant:
        """A guard above that of every earlier connection of the client id, whatever the clock does."""
        return Grant(claim.client_id, max(self._fences.guard(claim.client_id) + 1, int(time() * 1_000_000)))

    def commit(self, grant: Grant) -> bool:
        """Raise the fence, unless a newer grant has raised it further."""
        return self._fences.fence(grant.client_id, grant.guard)

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """Forget the client id with its session, unless a newer grant has it; until then later guards must be above this one.

        ``ending`` does not matter here: the will is published on this node.
        """
        if not keeps_session and self._fences.guard(grant.client_id) <= grant.guard:
            self._fences.forget(grant.client_id)


class LocalExclusiveTopics:
    """Exclusive subscriptions of this node's sessions."""

    def __init__(self) -> None:
        self._owners: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def ask(self, topic_filters: list[bytes], client_id: str, on_answer: Callable[[], None]) -> bool:
        """Never: this node decides."""
        return False

    def is_free(self, topic_filter: bytes, client_id: str) -> bool:
        """Whether the client has it, or no other client does."""
        return self._owners.get(topic_filter, client_id) == client_id

    def take(self, topic_filter: bytes, client_id: str) -> None:
        """Give it to the client."""
        self._owners[topic_filter] = client_id

    def release(self, topic_filter: bytes, client_id: str, *, is_moving: bool = False) -> None:
        """Take it from the client, if the client has it; a session takes it again where it goes."""
        if self._owners.get(topic_filter) == client_id:
            del self._owners[topic_filter]
