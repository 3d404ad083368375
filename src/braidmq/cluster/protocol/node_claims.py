"""A node's side of claims: which of its channels own their client ids, as far as the node knows.

A client may hang up, and a home may tell the node to let go, while a claim or its grant is on its way. So a channel is known
from its claim until the home has answered the block with its release or its withdrawal, and a grant below the guard of a later
*let go* is void when it arrives (C17).
"""

from __future__ import annotations

from braidmq.cluster.protocol.claims import ClaimRequest, Declaration


class _Channel:
    """A channel of this node, from its claim until its release is answered."""

    __slots__ = ("claim", "guard", "is_over")

    def __init__(self, claim: ClaimRequest) -> None:
        self.claim = claim
        self.guard: int | None = None  # None while the claim is not answered
        self.is_over = False  # its client is gone; the release or the withdrawal is on its way


class NodeClaims:
    """A node's side, for one home. The caller puts what ``hang_up`` and ``on_granted`` say into its next block."""

    def __init__(self) -> None:
        self._numbers = 0
        self._channels: dict[int, _Channel] = {}
        self._by_client: dict[str, dict[int, _Channel]] = {}
        self._let_go: dict[str, int] = {}  # by client id: grants below this guard are void, while a claim is not answered

    def claim(self, client_id: str) -> ClaimRequest:
        """Claim a client id for a new channel: send this to the home."""
        self._numbers += 1
        claim = ClaimRequest(self._numbers, client_id, self._numbers)
        channel = self._channels[claim.channel] = _Channel(claim)
        self._by_client.setdefault(client_id, {})[claim.channel] = channel
        return claim

    def guard_of(self, channel: int) -> int | None:
        """The guard of a channel that is granted and not over."""
        found = self._channels.get(channel)
        return found.guard if found is not None and not found.is_over else None

    def on_granted(self, claim: ClaimRequest, guard: int) -> bool:
        """A claim is granted; False if that is void by now. Then the caller hangs up, and the client is told so."""
        channel = self._channels.get(claim.channel)
        if channel is None or channel.is_over:
            return False  # its withdrawal is on its way
        channel.guard = guard
        return guard >= self._let_go.get(claim.client_id, 0)

    def on_rejected(self, claim: ClaimRequest) -> bool:
        """A newer claim has replaced this one; False if its client is gone already."""
        channel = self._channels.get(claim.channel)
        if channel is None or channel.is_over:
            return False
        self._drop(claim.channel)
        return True

    def on_let_go(self, client_id: str, guard: int) -> list[int]:
        """The channels that the caller has to end now, and then to hang up."""
        ending: list[int] = []
        for number, channel in self._by_client.get(client_id, {}).items():
            if channel.is_over:
                continue
            if channel.guard is None:
                # Its grant may be on its way with a lower guard, or still to come with a higher one.
                self._let_go[client_id] = max(guard, self._let_go.get(client_id, 0))
            elif channel.guard < guard:
                ending.append(number)
        return ending

    def hang_up(self, channel: int) -> ClaimRequest | None:
        """A channel has ended: put its release into the next block; or, if a claim is returned, its withdrawal."""
        found = self._channels[channel]
        found.is_over = True
        return found.claim if found.guard is None else None

    def on_released(self, channel: int) -> None:
        """The home has answered the block with the channel's release or withdrawal."""
        if channel in self._channels:
            self._drop(channel)

    def _drop(self, channel: int) -> None:
        client_id = self._channels.pop(channel).claim.client_id
        others = self._by_client[client_id]
        del others[channel]
        if not any(other.guard is None for other in others.values()):
            self._let_go.pop(client_id, None)
        if not others:
            del self._by_client[client_id]

    def open_claims(self) -> list[ClaimRequest]:
        """The claims to repeat after a lost connection."""
        return [channel.claim for channel in self._channels.values() if channel.guard is None and not channel.is_over]

    def declaration(self) -> Declaration:
        """What a home that has restarted has to know, before it gets this node's blocks."""
        channels = [
            (channel.claim.client_id, number, channel.guard)
            for number, channel in self._channels.items()
            if channel.guard is not None
        ]
        return Declaration(channels, self.open_claims(), self._numbers)
