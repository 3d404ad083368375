"""A node's side of claims: which of its channels own their client ids, as far as the node knows.

A client may hang up, and a home may tell the node to end a channel, while a claim or its grant is on its way. So a channel is
known from its claim until the home has answered the block with its release or its withdrawal, and a grant below the version of a
later *end* is void when it arrives (C17).

A node that has declared to a term accepts nothing of a lower one: another home may have granted the client id since (R14). It
also remembers the highest version of a client id that has ended here for as long as an older claim may be under way, and tells
it to a home that has restarted (R12, R15).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable

from msgspec import Struct

from braidmq.cluster.registry.decisions import DEADLINE_S
from braidmq.cluster.registry.messages import ClaimRequest, Declaration, GrantedChannel, SweepAnswer
from braidmq.cluster.registry.versions import SAME_CLOCK_MS, Version

_SLOW_CLOCK_S = 1.0  # how much longer than its deadline a claim is remembered, since clocks differ


def _only_home(client_id: str) -> Hashable:
    return None


class _Channel(Struct, gc=False, eq=False):
    """A channel of this node, from its claim until its release is answered."""

    claim: ClaimRequest
    guard: int | None = None  # None while the claim is not answered
    version: Version | None = None
    bound_ms: int = 0
    is_over: bool = False  # its client is gone; the release or the withdrawal is on its way


class NodeClaims:
    """A node's side, for all its homes. The caller puts what ``hang_up`` and ``on_granted`` say into its next block."""

    def __init__(
        self,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        home_of: Callable[[str], Hashable] = _only_home,
    ) -> None:
        """``deadline_s``: how long a claim is pursued. ``home_of``: what the terms of a client id's home are counted for."""
        self._remember_s = deadline_s + _SLOW_CLOCK_S
        self._clock = clock
        self._home_of = home_of
        self._numbers = 0
        self._channels: dict[int, _Channel] = {}
        self._by_client: dict[str, dict[int, _Channel]] = {}
        self._void: dict[str, Version] = {}  # by client id: grants below this version are void, while a claim is not answered
        self._terms: dict[Hashable, int] = {}
        self._ended: dict[str, GrantedChannel] = {}  # the highest one that has ended here, by client id
        self._lately: deque[tuple[float, GrantedChannel]] = deque()  # when they are forgotten, in order

    # Terms

    def promise(self, home: Hashable, term: int) -> None:
        """The node declares to a term of a home: from now on it accepts nothing of a lower one.

        Open claims are decided anew there, so what an earlier term has said about their grants counts no more.
        """
        if term > self._terms.get(home, 0):
            self._terms[home] = term
            self._void = {client_id: version for client_id, version in self._void.items() if self._home_of(client_id) != home}

    def term_of(self, client_id: str) -> int:
        """The term that the home of a client id has, as far as the node has declared to it."""
        return self._terms.get(self._home_of(client_id), 0)

    def accepts(self, client_id: str, term: int) -> bool:
        """Whether what a home says about a client id in this term counts."""
        return term >= self.term_of(client_id)

    # Claims

    def is_outdated(self, client_id: str, ms: int) -> bool:
        """Whether this node has claimed the client id for a newer connection, so that there is nothing to ask (R22)."""
        newer_ms = ms + SAME_CLOCK_MS
        if any(channel.claim.ms > newer_ms for channel in self._by_client.get(client_id, {}).values()):
            return True
        self._forget()
        ended = self._ended.get(client_id)
        return ended is not None and ended.ms > newer_ms

    def claim(self, client_id: str, ms: int = 0, bound_ms: int = 0, made_ms: int = 0, age_ms: int = 0) -> ClaimRequest:
        """Claim a client id for a new channel: send this to the home."""
        self._numbers += 1
        claim = ClaimRequest(self._numbers, client_id, self._numbers, ms, bound_ms, made_ms, age_ms)
        channel = self._channels[claim.channel] = _Channel(claim)
        self._by_client.setdefault(client_id, {})[claim.channel] = channel
        return claim

    def guard_of(self, channel: int) -> int | None:
        """The guard of a channel that is granted and not over."""
        found = self._channels.get(channel)
        return found.guard if found is not None and not found.is_over else None

    def version_of(self, channel: int) -> Version | None:
        """The version with which a channel was granted, if it is not over."""
        found = self._channels.get(channel)
        return found.version if found is not None and not found.is_over else None

    def on_granted(self, claim: ClaimRequest, guard: int, version: Version, bound_ms: int = 0) -> bool:
        """A claim is granted; False if that is void by now. Then the caller hangs up, and the client is told so."""
        channel = self._channels.get(claim.channel)
        if channel is None or channel.is_over:
            return False  # its withdrawal is on its way
        channel.guard, channel.version, channel.bound_ms = guard, version, bound_ms
        void = self._void.get(claim.client_id)
        return void is None or version >= void

    def on_rejected(self, claim: ClaimRequest) -> bool:
        """The claim is rejected; False if its client is gone already."""
        channel = self._channels.get(claim.channel)
        if channel is None or channel.is_over:
            return False
        self._drop(claim.channel)
        return True

    def on_end(self, client_id: str, version: Version, channel: int = 0) -> list[int]:
        """The channels that the caller has to end now, and then to hang up: those below a version, or a kicked channel."""
        ending: list[int] = []
        for number, found in self._by_client.get(client_id, {}).items():
            if found.is_over:
                continue
            if channel:
                if number == channel:
                    ending.append(number)
            elif found.version is None:
                # Its grant may be on its way with a lower version, or still to come with a higher one.
                self._void[client_id] = max(version, self._void.get(client_id, version))
            elif found.version < version:
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

    def _drop(self, number: int) -> None:
        channel = self._channels.pop(number)
        client_id = channel.claim.client_id
        if channel.guard is not None:
            self._remember(_granted(channel))
        others = self._by_client[client_id]
        del others[number]
        if not any(other.guard is None for other in others.values()):
            self._void.pop(client_id, None)
        if not others:
            del self._by_client[client_id]

    def _remember(self, ended: GrantedChannel) -> None:
        self._forget()
        before = self._ended.get(ended.client_id)
        if before is None or before.version < ended.version:
            self._ended[ended.client_id] = ended
            self._lately.append((self._clock() + self._remember_s, ended))

    def _forget(self) -> None:
        now = self._clock()
        while self._lately and self._lately[0][0] <= now:
            _, ended = self._lately.popleft()
            if self._ended.get(ended.client_id) is ended:
                del self._ended[ended.client_id]

    def open_claims(self) -> list[ClaimRequest]:
        """The claims to repeat after a lost connection."""
        return [channel.claim for channel in self._channels.values() if channel.guard is None and not channel.is_over]

    def listed(self, home: Hashable, first: int, last: int) -> SweepAnswer:
        """The channels of client ids that are at home there, with numbers above ``first``, up to ``last``; 0: all above."""
        end = self._numbers if not last else min(last, self._numbers)
        if end - first < len(self._channels):
            numbers = [number for number in range(first + 1, end + 1) if number in self._channels]
        else:
            numbers = [number for number in self._channels if first < number <= end]
        served: list[int] = []
        others: list[int] = []
        for number in numbers:
            channel = self._channels[number]
            if self._home_of(channel.claim.client_id) == home:
                (others if channel.guard is None or channel.is_over else served).append(number)
        return SweepAnswer(first, last, served, others)

    def redeclared(self, numbers: Iterable[int]) -> list[GrantedChannel]:
        """Channels that a home has asked for by number, those that are still served."""
        found = (self._channels.get(number) for number in numbers)
        return [_granted(each) for each in found if each is not None and each.guard is not None and not each.is_over]

    def declaration(self, home: Hashable = None) -> Declaration:
        """What a home that has restarted has to know, before it gets this node's blocks."""
        self._forget()
        channels = [
            _granted(channel)
            for channel in self._channels.values()
            if channel.guard is not None and self._home_of(channel.claim.client_id) == home
        ]
        claims = [claim for claim in self.open_claims() if self._home_of(claim.client_id) == home]
        ended = [channel for channel in self._ended.values() if self._home_of(channel.client_id) == home]
        return Declaration(channels, claims, self._numbers, ended)


def _granted(channel: _Channel) -> GrantedChannel:
    claim = channel.claim
    assert channel.guard is not None
    assert channel.version is not None
    return GrantedChannel(
        claim.client_id, claim.channel, channel.guard, channel.version, channel.bound_ms, claim.ms, claim.bound_ms
    )
