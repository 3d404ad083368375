"""The ports of ``broker.session.ports`` for a node that is alone."""

from __future__ import annotations

from time import time

from braidmq.broker.ports import Fences
from braidmq.broker.session.ports import Claim


class LocalRegistry:
    """Grants every claim at once: the newest wins. ``Session.connection`` in the session table is the owner of a client id."""

    def __init__(self, fences: Fences) -> None:
        self._fences = fences

    def begin(self, client_id: str) -> Claim:
        """A guard above that of every earlier connection of the client id, whatever the clock does."""
        return Claim(client_id, max(self._fences.version(client_id) + 1, int(time() * 1_000_000)))

    def commit(self, claim: Claim) -> bool:
        """Fence older connections: the log takes nothing from them any more."""
        return self._fences.fence(claim.client_id, claim.guard)

    def end(self, claim: Claim, *, keeps_session: bool) -> None:
        """Forget the client id with its session, unless a newer claim has it; until then later guards must be above this one."""
        if not keeps_session and self._fences.version(claim.client_id) <= claim.guard:
            self._fences.forget(claim.client_id)


class LocalExclusiveTopics:
    """Exclusive subscriptions of this node's sessions."""

    def __init__(self) -> None:
        self._owners: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def is_free(self, topic_filter: bytes, client_id: str) -> bool:
        """Whether the client has it, or no other client does."""
        return self._owners.get(topic_filter, client_id) == client_id

    def take(self, topic_filter: bytes, client_id: str) -> None:
        """Give it to the client."""
        self._owners[topic_filter] = client_id

    def release(self, topic_filter: bytes, client_id: str) -> None:
        """Take it from the client, if the client has it."""
        if self._owners.get(topic_filter) == client_id:
            del self._owners[topic_filter]
