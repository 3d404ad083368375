"""The registry as a node sees it: every claim is a question to the client id's home.

`node_claims.NodeClaims` knows which channels this node has claimed for; this module asks the home, answers the CONNECTs that
wait, and puts releases into the node's blocks, behind everything that their clients have sent (C12).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from msgspec import Struct

from braidmq.access.contract import Refused
from braidmq.base.errors import BraidError
from braidmq.broker.messages.producer_books import NotTaken
from braidmq.broker.session.ports import Claim, Grant, GrantEnding
from braidmq.cluster.protocol.endings import SUPERSEDED, ending_of
from braidmq.cluster.protocol.operations import decode_session, encode_will
from braidmq.cluster.protocol.producer_messages import decode_start, encode_request
from braidmq.cluster.registry.messages import ClaimRequest, GrantedChannel
from braidmq.cluster.registry.node_claims import NodeClaims
from braidmq.cluster.registry.times import UNDATED, ConnectionTimes
from braidmq.cluster.registry.versions import Version, VersionClock
from braidmq.lane.flows.flow import Flow
from braidmq.mqtt.reasons import Reason
from braidmq.net.proto_v1 import ReleaseEntry, WithdrawEntry
from braidmq.net.proto_v1_claims import (
    ClaimId,
    ClaimMessage,
    ClaimTimes,
    CloseChannel,
    Declare,
    DeclaredChannel,
    EndedChannel,
    EndId,
    GrantId,
    ProbedId,
    ProbeId,
    RedeclaredId,
    RedeclareId,
    RejectId,
    SweepId,
    SweptId,
    VersionId,
)

log = logging.getLogger("braidmq.cluster")

TAKEN_OVER: Final = "another connection uses this client id"
KICKED: Final = "closed by the operator"
_AWAY: Final = Refused(Reason.SERVER_UNAVAILABLE, "the core is not reachable")


class ReleaseLog(Protocol):
    """Takes entries for the node's blocks; implemented by the remote log."""

    def shard_of(self, client_id: str) -> int:
        """The shard of a client id."""

    def add_entry(self, shard: int, entry: ReleaseEntry | WithdrawEntry, on_answer: Callable[[], None]) -> None:
        """Put an entry behind everything that was collected so far; ``on_answer`` when the home has answered its block."""


class _AskedChannel(Struct, gc=False):
    """A claim of this node, from the CONNECT to the answered release."""

    claim: Claim
    request: ClaimRequest
    answer: asyncio.Future[Grant | Refused] | None
    deadline: asyncio.TimerHandle | None = None
    guard: int = 0
    is_ended: bool = False  # the home ended it, perhaps before its session was open: then there was nothing to close


class NodeRegistry:
    """Implements the broker's ``Registry`` on a node without a database."""

    def __init__(
        self,
        claims: NodeClaims,
        releases: ReleaseLog,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[ClaimId], None],
        close: Callable[[str, int, str], None],
        wait_s: float,
        clock: VersionClock | None = None,
    ) -> None:
        """``send`` tells the home, or nothing while it is away. ``close`` closes the connection of a client id, with a reason.

        ``wait_s``: how long a CONNECT waits. ``clock``: dates connections; None: those whose claims arrive later are newer.
        """
        self._claims = claims
        self._releases = releases
        self._loop = loop
        self._send = send
        self._close = close
        self._wait_s = wait_s
        self.times = ConnectionTimes(clock)
        self.outdated = 0  # CONNECTs that were refused without asking, because this node has claimed for newer connections
        self.undated = 0  # CONNECTs that were refused because the clock is not certain enough
        self._channels: dict[int, _AskedChannel] = {}
        self._granted: dict[str, _AskedChannel] = {}  # by client id: the newest

    # What the remote log asks

    def of_client(self, client_id: str) -> int:
        """The number that stands for the client id and its guard in blocks; 0 if it has no channel here."""
        channel = self._granted.get(client_id)
        return channel.request.channel if channel is not None else 0

    def client_of(self, channel: int) -> str | None:
        """The client id that a channel owns; None if it has ended."""
        asked = self._channels.get(channel)
        return asked.request.client_id if asked is not None and self._granted.get(asked.request.client_id) is asked else None

    def of_flow(self, flow: Flow) -> int:
        """The channel that publishes with this flow; 0 if it has none any more."""
        return self.of_client(flow.client_id)

    def on_fenced(self, channel: int) -> None:
        """The home refuses what comes from a channel, because another one owns its client id."""
        asked = self._channels.get(channel)
        if asked is not None and self._granted.get(asked.request.client_id) is asked:
            self._close(asked.request.client_id, Reason.SESSION_TAKEN_OVER, TAKEN_OVER)

    def granted(self) -> list[str]:
        """The client ids that this node has."""
        return list(self._granted)

    def guard_of(self, client_id: str) -> int:
        """The guard of the channel that was granted a client id last; 0 if there is none."""
        channel = self._granted.get(client_id)
        return 0 if channel is None else channel.guard

    def version_of(self, client_id: str) -> Version | None:
        """The version with which the channel was granted that was granted a client id last."""
        channel = self._granted.get(client_id)
        return None if channel is None else self._claims.version_of(channel.request.channel)

    # The broker's port

    def claim(self, claim: Claim) -> Grant | Refused | Awaitable[Grant | Refused]:
        """Ask the home for a client id, unless this node knows of a newer connection."""
        times = self.times.of(claim)
        if times is None:
            self.undated += 1
            return UNDATED
        if times.ms and self._claims.is_outdated(claim.client_id, times.ms):
            self.outdated += 1
            return SUPERSEDED
        request = self._claims.claim(claim.client_id, *times)
        answer = self._loop.create_future()
        channel = self._channels[request.channel] = _AskedChannel(claim, request, answer)
        channel.deadline = self._loop.call_later(self._wait_s, partial(self._give_up, channel))
        self._send(_claim_id(channel, self._claims.term_of(claim.client_id)))
        return answer

    def commit(self, grant: Grant) -> bool:
        """Whether the grant still counts on this node."""
        channel = self._granted.get(grant.client_id)
        if channel is None or channel.is_ended:
            return False
        return self._claims.guard_of(channel.request.channel) == grant.guard

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """The connection gives the client id up: say so behind everything that its client has sent."""
        channel = self._granted.get(grant.client_id)
        if channel is None or channel.guard != grant.guard:
            return
        self._hang_up(channel, ending)  # it sends what was collected for this channel, which must still be known by its client id
        del self._granted[grant.client_id]

    def _hang_up(self, channel: _AskedChannel, ending: GrantEnding) -> None:
        number = channel.request.channel
        unanswered = self._claims.hang_up(number)
        entry: ReleaseEntry | WithdrawEntry = ReleaseEntry(number, ending_of(ending).value)
        if unanswered is not None:
            entry = WithdrawEntry(unanswered.number, unanswered.client_id, unanswered.channel)
        shard = self._releases.shard_of(channel.request.client_id)
        self._releases.add_entry(shard, entry, partial(self._released, number))

    def _released(self, number: int) -> None:
        self._claims.on_released(number)
        self._channels.pop(number, None)

    def _give_up(self, channel: _AskedChannel) -> None:
        """The home has not answered in time."""
        self._answer(channel, _AWAY)
        self._hang_up(channel, GrantEnding.WITHDRAWN)

    def _answer(self, channel: _AskedChannel, answer: Grant | Refused) -> None:
        if channel.deadline is not None:
            channel.deadline.cancel()
            channel.deadline = None
        future, channel.answer = channel.answer, None
        if future is not None and not future.done():
            future.set_result(answer)

    # The home

    def receive(self, message: ClaimMessage, home: str) -> ClaimMessage | None:
        """A home has decided, or asks something; what it is to be answered at once.

        Raises BraidError if a home does not say such things, or says them about unknown sessions.
        """
        match message:
            case ProbeId():
                return ProbedId(message.client_id, message.channel, message.term)
            case SweepId():
                return self._listed(home, message)
            case RedeclareId():
                return RedeclaredId([self._declared(each) for each in self._claims.redeclared(message.channels)])
            case GrantId():
                self._on_granted(message)
            case RejectId():
                self._on_rejected(message)
            case EndId():
                self._on_end(message)
            case CloseChannel():
                self._on_close(message)
            case _:
                raise BraidError(f"a home does not send {type(message).__name__}")
        return None

    def _listed(self, home: str, asked: SweepId) -> SweptId:
        found = self._claims.listed(home, asked.first, asked.last)
        return SweptId(found.first, found.last, list(found.served), list(found.others))

    def _on_granted(self, message: GrantId) -> None:
        channel = self._channels.get(message.number)  # channels are numbered like their claims
        if channel is None or channel.answer is None or not self._accepts(channel, message.term):
            return  # it was withdrawn, or the answer is a repeat, or one of an earlier home
        version = message.version
        is_valid = self._claims.on_granted(channel.request, message.guard, version_of(version), version.bound_ms)
        channel.guard = message.guard
        if not is_valid or channel.answer.cancelled():
            self._answer(channel, SUPERSEDED)
            self._hang_up(channel, GrantEnding.WITHDRAWN)
            return
        self._granted[channel.request.client_id] = channel
        stored = decode_session(message.session)
        start = decode_start(message.producer)
        granted = version_of(version)
        self._answer(channel, Grant(channel.request.client_id, message.guard, stored, message.replaces_user, start, granted))

    def _on_rejected(self, message: RejectId) -> None:
        channel = self._channels.get(message.number)
        if channel is not None and self._accepts(channel, message.term) and self._claims.on_rejected(channel.request):
            del self._channels[message.number]
            reason = Reason(message.reason)
            refused = Refused(reason, message.detail)
            if message.told is not None:
                refused = NotTaken(reason, message.detail, tuple(message.told))
            self._answer(channel, refused)

    def _accepts(self, channel: _AskedChannel, term: int) -> bool:
        return self._claims.accepts(channel.request.client_id, term)

    def _on_end(self, message: EndId) -> None:
        if not self._claims.accepts(message.client_id, message.term):
            return
        for number in self._claims.on_end(message.client_id, version_of(message.version), message.kicked):
            channel = self._channels[number]
            channel.is_ended = True
            if self._granted.get(message.client_id) is channel:
                if message.kicked:
                    self._close(message.client_id, Reason.ADMINISTRATIVE_ACTION, KICKED)
                else:
                    self._close(message.client_id, Reason.SESSION_TAKEN_OVER, TAKEN_OVER)

    def _on_close(self, message: CloseChannel) -> None:
        asked = self._channels.get(message.channel)
        if asked is not None and self._granted.get(asked.request.client_id) is asked:
            asked.is_ended = True
            self._close(asked.request.client_id, message.reason, message.detail)

    def declaration(self, home: str, term: int) -> Declare:
        """What a home that this node meets, or meets again, must be told before anything else: the client ids that it has.

        A home is told of no others (C16). From now on nothing of an earlier term of it is accepted (R14).
        """
        self._claims.promise(home, term)
        declaration = self._claims.declaration(home)
        channels = [self._declared(each) for each in declaration.channels if each.channel in self._channels]
        claims = [_claim_id(self._channels[claim.channel], term) for claim in declaration.claims]
        ended = [
            EndedChannel(each.client_id, each.channel, each.guard, _version_id(each), _times(each)) for each in declaration.ended
        ]
        return Declare(channels, claims, declaration.claimed, ended, term)

    def _declared(self, channel: GrantedChannel) -> DeclaredChannel:
        claim = self._channels[channel.channel].claim
        will = encode_will(claim.will)
        return DeclaredChannel(
            channel.client_id,
            channel.channel,
            channel.guard,
            claim.user_name,
            claim.expiry_s,
            will,
            _version_id(channel),
            _times(channel),
        )


def _version_id(channel: GrantedChannel) -> VersionId:
    version = channel.version
    return VersionId(version.ms, version.registration, version.counter, version.arrival, channel.bound_ms)


def _times(channel: GrantedChannel) -> ClaimTimes:
    return ClaimTimes(channel.ms, channel.own_bound_ms)


def version_of(version: VersionId) -> Version:
    """A version as it was sent."""
    return Version(version.ms, version.registration, version.counter, version.arrival)


def _claim_id(channel: _AskedChannel, term: int) -> ClaimId:
    claim, request = channel.claim, channel.request
    return ClaimId(
        request.number,
        request.client_id,
        request.channel,
        claim.user_name,
        claim.clean_start,
        claim.expiry_s,
        encode_will(claim.will),
        claim.peer_host,
        encode_request(claim.producer),
        ClaimTimes(request.ms, request.bound_ms, request.made_ms, request.age_ms),
        term,
    )
