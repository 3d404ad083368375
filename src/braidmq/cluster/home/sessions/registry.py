"""The home's registry: which channel, of the core itself or of a node, owns a client id.

`claims.HomeClaims` decides; this module carries its decisions out. There are two kinds of claimants:

- Clients of the core itself claim through the broker's ``Registry`` port. If no node owns the client id, they are answered at
  once, as on a single node.
- Clients of nodes claim by message. A grant brings the stored session along.

A session without a client is always the core's own. When a channel of a node ends, its session returns to the core first
(`sessions`), whatever follows; a grant to a node takes it from there. So there is one way out and one way back.

Decisions are carried out in later callbacks of the loop, in the order in which they were made: a release may come from the middle
of a step of `Lifecycle`, which must have completed before the session goes elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from braidmq.access.contract import Refused
from braidmq.broker.messages.producer_books import NotTaken
from braidmq.broker.session.ports import Claim, Grant, GrantEnding
from braidmq.cluster.home.presence import HomePresence
from braidmq.cluster.home.sessions.granted_claim import GrantedClaim
from braidmq.cluster.home.sessions.held_session import GivenSession, NodeClaim
from braidmq.cluster.home.sessions.refusals import REFUSALS
from braidmq.cluster.home.sessions.registry_upkeep import RegistryUpkeep
from braidmq.cluster.home.sessions.session_ports import ClaimAnswers
from braidmq.cluster.home.sessions.sessions import HomeSessions
from braidmq.cluster.membership.led_shards import LedShards, Misdirected
from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.claim_frames import BadClaims
from braidmq.cluster.protocol.endings import ending_of
from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import (
    Action,
    ClaimGranted,
    ClaimRejected,
    ClaimRequest,
    Declaration,
    Ended,
    Ending,
    EndLoser,
    GrantedChannel,
    Outcome,
    OwnerRestored,
    Probe,
)
from braidmq.cluster.registry.takeover_times import TakeoverTimes
from braidmq.cluster.registry.times import UNDATED, ConnectionTimes
from braidmq.cluster.registry.versions import VersionClock
from braidmq.mqtt.reasons import Reason

log = logging.getLogger("braidmq.cluster")

_ELSEWHERE: Final = Refused(Reason.SERVER_UNAVAILABLE, "another core decides about this client id")
_BANNED: Final = Refused(Reason.BANNED, "banned")
_NAME_ELSEWHERE: Final = NotTaken(
    Reason.CLIENT_IDENTIFIER_NOT_VALID,
    "another core has this producer name: the client id must have the same shard as the name, crc32 modulo the number of shards",
)


class _Ready(Struct, frozen=True, gc=False):
    """Every node has declared its channels."""


_READY: Final = _Ready()


class HomeRegistry:
    """Implements the broker's ``Registry`` for the core's clients, and takes the claims of nodes."""

    def __init__(
        self,
        claims: HomeClaims[Member],
        local: Member,
        led: LedShards,
        misdirected: Misdirected,
        presence: HomePresence,
        clock: VersionClock | None = None,
    ) -> None:
        """``local``: the core itself. ``clock``: dates the connections of its own clients. ``serve`` must follow."""
        self.times = ConnectionTimes(clock)
        self._claims = claims
        self._led = led
        self._misdirected = misdirected
        self._local = local
        self._presence = presence
        self._sessions: HomeSessions
        self._loop: asyncio.AbstractEventLoop
        self._close_local: Callable[[str, bool], None]
        self._is_banned: Callable[[NodeClaim], bool]
        self._on_ready: Callable[[], None]
        self._numbers = 0
        self._own: dict[str, tuple[int, int]] = {}  # client ids of the core's channels: guard and channel
        self._waiting: dict[int, asyncio.Future[Grant | Refused]] = {}  # the core's own claims, by number
        self._asked: dict[tuple[Member, int], NodeClaim] = {}  # unanswered claims of nodes
        self._newcomers: set[tuple[Member, int]] = set()  # those of client ids without sessions
        self._declared: dict[tuple[Member, int], NodeClaim] = {}  # by channel, until the declaration is carried out
        self._nodes: dict[Member, ClaimAnswers] = {}
        self._decided: deque[Action[Member] | _Ready] = deque()
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.claims_granted = self.claims_rejected = 0  # of clients of nodes
        self.claims_taken_over = 0  # of any client: a node's client had the client id
        self.claims_fenced = 0  # of those: the node did not release the client id in time
        self.claims_misdated = 0  # claims of another term, or with times that no clock shows yet
        self.takeovers = TakeoverTimes()
        self.upkeep = RegistryUpkeep(claims, self)

    def serve(
        self,
        sessions: HomeSessions,
        loop: asyncio.AbstractEventLoop,
        close_local: Callable[[str, bool], None],
        on_ready: Callable[[], None],
        is_banned: Callable[[NodeClaim], bool],
    ) -> None:
        """The core's broker is there. ``close_local`` closes its own connection of a client id, which is taken over or kicked.

        ``on_ready``: every node has declared its channels, or is dead; what they have declared is held.
        ``is_banned``: whether an operator's ban applies to a node's client; the node may not have it yet (C28).
        """
        self._is_banned = is_banned
        self._sessions = sessions
        self._loop = loop
        self._close_local = close_local
        self._on_ready = on_ready
        self.upkeep.start(loop)

    @property
    def is_ready(self) -> bool:
        """Whether every node has declared its channels: before that, no block is taken and no client id is granted."""
        return self._claims.is_ready

    # The core's own clients

    def claim(self, claim: Claim) -> Grant | Refused | Awaitable[Grant | Refused]:
        """Ask for a client id; answered at once unless a node owns it."""
        refused = self._sessions.refusal(claim.client_id, claim.user_name, len(self._newcomers))
        if refused is not None:
            return refused
        times = self.times.of(claim)
        if times is None:
            return UNDATED
        self._numbers += 1
        request = ClaimRequest(self._numbers, claim.client_id, self._numbers, *times)
        owner = self._claims.owner(claim.client_id)
        self.claims_taken_over += owner is not None and owner.node != self._local
        actions = self._claims.claim(self._local, request, self._loop.time())
        for action in actions:
            if isinstance(action, EndLoser) and action.node == self._local:
                # The session stays in this process: `Lifecycle` takes it from the old connection.
                actions += self._claims.release(self._local, action.channel, Ending.TAKEN)
                break
        for action in actions:
            if isinstance(action, ClaimGranted) and action.claim == request and not self._is_busy(claim.client_id):
                self.carry_out(each for each in actions if isinstance(each, ClaimRejected))
                return self._own_grant(action)
            if isinstance(action, ClaimRejected) and action.claim == request:
                return REFUSALS[action.outcome]
        answer = self._loop.create_future()
        self._waiting[request.number] = answer
        self.carry_out(actions)
        return answer

    def _is_busy(self, client_id: str) -> bool:
        """Whether a session of the client id may be on its way back from a node."""
        return bool(self._decided) or self._sessions.is_returning(client_id)

    def _own_grant(self, granted: ClaimGranted[Member]) -> Grant:
        request = granted.claim
        self._sessions.wills.note_grant(request.client_id)
        self._own[request.client_id] = granted.guard, request.channel
        return Grant(request.client_id, granted.guard, granted_version=granted.version)

    def commit(self, grant: Grant) -> bool:
        """Whether the grant still counts: no newer one was given out."""
        return self._own.get(grant.client_id, (0, 0))[0] == grant.guard

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """The connection gives the client id up, or never got it."""
        guard, channel = self._own.get(grant.client_id, (0, 0))
        if guard == grant.guard:
            del self._own[grant.client_id]
            self.carry_out(self._claims.release(self._local, channel, ending_of(ending)))

    # Nodes

    def client_of(self, node: Member, channel: int) -> str | None:
        """The client that owns its id through this channel of a node."""
        return self._claims.client_of(node, channel)

    def join(self, node: Member, answers: ClaimAnswers) -> None:
        """A node has connected, perhaps again."""
        self._nodes[node] = answers
        self.carry_out(self._claims.connected(node))

    def lost(self, node: Member, answers: ClaimAnswers) -> None:
        """The node's connection is gone; the node may come back."""
        if self._nodes.get(node) is answers:
            del self._nodes[node]
            self.upkeep.lost(node)

    def declare(
        self, node: Member, declared: Declaration, channels: Mapping[int, NodeClaim], claims: Mapping[int, NodeClaim]
    ) -> None:
        """A node names its channels, by number, and its unanswered claims, by theirs. Raises BadClaims."""
        if not all(self._is_led(node, each) for each in (*channels.values(), *claims.values())):
            raise BadClaims("a node declares a client id that another core decides about")
        self._asked.update(((node, number), claim) for number, claim in claims.items())
        self._declared.update(((node, channel), claim) for channel, claim in channels.items())
        was_ready = self._claims.is_ready
        self._carry_out_ready(was_ready, self._claims.declare(node, declared, self._loop.time()))

    @property
    def term(self) -> int:
        """The term of this registry: that of the core's start, until a registry may be led by another core than its shard."""
        return self._local.incarnation

    def probed(self, node: Member, client_id: str, channel: int) -> None:
        """A node has answered a probe."""
        self.carry_out(self._claims.probed(node, client_id, channel, self._loop.time()))

    def ask(self, node: Member, claim: NodeClaim, term: int) -> None:
        """A client of a node claims a client id."""
        if term != self.term:
            self.claims_misdated += 1
            return  # it repeats the claim to the home that it has declared to (R14)
        refused = self._sessions.refusal(claim.request.client_id, claim.user_name, len(self._newcomers))
        if self._is_banned(claim):
            refused = _BANNED
        if not self._is_led(node, claim):
            refused = _ELSEWHERE
        refused = refused or self._judge_producer(claim)
        if refused is not None:
            self._answer_rejected(node, claim.request, refused)
            return
        self._asked[node, claim.request.number] = claim
        owner = self._claims.owner(claim.request.client_id)
        self.claims_taken_over += owner is not None and owner.node != self._local
        if not self._sessions.has(claim.request.client_id):
            self._newcomers.add((node, claim.request.number))
        self.carry_out(self._claims.claim(node, claim.request, self._loop.time()))

    def _judge_producer(self, claim: NodeClaim) -> Refused | None:
        asked = claim.producer
        if asked is not None and asked.name and not self._led.has(asked.name):
            return _NAME_ELSEWHERE  # its batch is a row of another core's shard
        return self._sessions.judge_producer(claim)

    def _is_led(self, node: Member, claim: NodeClaim) -> bool:
        return self.leads(node, "claims", claim.request.client_id)

    def leads(self, node: Member, what: str, name: str) -> bool:
        """Whether a client id, or a producer's name, is this core's. ``what``: what the node asks about it."""
        if self._led.has(name):
            return True
        self._misdirected.note(what, node.name, self._led.shard_of(name))
        return False

    def redeclared(self, node: Member, found: list[GrantedChannel], channels: Mapping[int, NodeClaim]) -> None:
        """A node declares channels that the sweep has found. Raises BadClaims."""
        if not all(self._is_led(node, each) for each in channels.values()):
            raise BadClaims("a node declares a client id that another core decides about")
        self._declared.update(((node, channel), claim) for channel, claim in channels.items())
        self.carry_out(self._claims.restore(node, found))

    def answers_of(self, node: Member) -> ClaimAnswers | None:
        """Where a node is told something; None: it is not connected."""
        return self._nodes.get(node)

    def release(self, node: Member, channel: int, ending: Ending) -> None:
        """A channel of a node has ended; everything that its client sent is with the log."""
        self.carry_out(self._claims.release(node, channel, ending))

    def withdraw(self, node: Member, request: ClaimRequest) -> None:
        """A node no longer wants what it has claimed."""
        self._take_asked(node, request)
        self.carry_out(self._claims.withdraw(node, request))

    def dead(self, node: Member) -> None:
        """A node is dead: its clients are gone."""
        self._nodes.pop(node, None)
        self.upkeep.lost(node)
        self._asked = {key: claim for key, claim in self._asked.items() if key[0] != node}
        self._newcomers = {key for key in self._newcomers if key[0] != node}
        was_ready = self._claims.is_ready
        self._carry_out_ready(was_ready, self._claims.dead(node, self._loop.time()))

    def _carry_out_ready(self, was_ready: bool, actions: list[Action[Member]]) -> None:
        """Carry decisions out. If they make the home ready, it holds what nodes have declared before it grants anything."""
        if was_ready or not self._claims.is_ready:
            self.carry_out(actions)
            return
        restored = [action for action in actions if isinstance(action, OwnerRestored)]
        self.carry_out([*restored, _READY, *(action for action in actions if not isinstance(action, OwnerRestored))])

    # Decisions

    def carry_out(self, actions: Iterable[Action[Member] | _Ready]) -> None:
        """Carry decisions out, in order, after the running callback."""
        self._decided.extend(actions)
        if self._decided and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run)
        self._watch_time()

    def _run(self) -> None:
        self._is_scheduled = False
        while self._decided:
            self._carry_out(self._decided.popleft())

    def _carry_out(self, action: Action[Member] | _Ready) -> None:
        match action:
            case _Ready():
                self._on_ready()
            case ClaimGranted(node) if node == self._local:
                self._grant_own(action)
            case ClaimGranted():
                self._grant(action)
            case ClaimRejected(node, claim, outcome):
                self._reject(node, claim, outcome)
            case Probe(node, client_id, channel):
                if (answers := self._nodes.get(node)) is not None:
                    answers.probe(client_id, channel)
            case EndLoser(node, client_id, _, channel, is_kicked) if node == self._local:
                if self._own.get(client_id, (0, 0))[1] == channel:
                    self._close_local(client_id, is_kicked)
            case EndLoser(node, client_id, version, channel, is_kicked):
                if (answers := self._nodes.get(node)) is not None:
                    answers.end(client_id, version, channel if is_kicked else 0)
            case Ended(client_id, owner, ending, version) if owner.node != self._local:
                known = self._sessions.claim_of(client_id, owner.guard)
                self._presence.ended(client_id, owner.node.name, ending, version, known)
                self._sessions.come_back(client_id, owner.guard, ending)
            case OwnerRestored(_, owner) if owner.node != self._local:
                declared = self._declared.pop((owner.node, owner.channel), None)
                if declared is not None:
                    self._sessions.hold_again(owner.node, declared, owner.guard)
            case _:
                pass

    def _grant_own(self, granted: ClaimGranted[Member]) -> None:
        client_id = granted.claim.client_id
        waiting = self._waiting.pop(granted.claim.number)
        grant = self._own_grant(granted)

        def answer() -> None:
            self._sessions.wills.note_grant(client_id)
            if waiting.cancelled():
                self.end(grant, keeps_session=True, ending=GrantEnding.WITHDRAWN)
            else:
                waiting.set_result(grant)

        self._sessions.after_return(client_id, answer)

    def _grant(self, granted: ClaimGranted[Member]) -> None:
        node, request, guard = granted.node, granted.claim, granted.guard
        claim = self._take_asked(node, request)
        if claim is None:
            # It was granted before, and the node asks again because it has lost the answer.
            claim = self._sessions.claim_of(request.client_id, guard)
        if claim is None:
            return  # it was withdrawn, and its release follows

        self._sessions.hand_out(node, claim, guard, GrantedClaim(self, granted))

    def send_grant(self, granted: ClaimGranted[Member], given: GivenSession) -> None:
        """What a grant says is on disk: tell the node."""
        self.claims_granted += 1
        if granted.has_waited:
            self.takeovers.note(self._loop.time() - granted.arrived)
        if (answers := self._nodes.get(granted.node)) is not None:
            answers.grant(granted, given)

    def take_back(self, node: Member, request: ClaimRequest, refused: Refused) -> None:
        """Reject a claim that was granted, and that its node was not told of."""
        self._answer_rejected(node, request, refused)
        self.carry_out(self._claims.release(node, request.channel, Ending.WITHDRAWN))

    def close_channel(self, node: Member, channel: int, reason: int, detail: str) -> None:
        """Let a node close the connection of a channel."""
        if (answers := self._nodes.get(node)) is not None:
            answers.close_channel(channel, reason, detail)

    def _take_asked(self, node: Member, request: ClaimRequest) -> NodeClaim | None:
        self._newcomers.discard((node, request.number))
        return self._asked.pop((node, request.number), None)

    def _reject(self, node: Member, request: ClaimRequest, outcome: Outcome) -> None:
        if outcome is Outcome.ABORT:
            log.info("the claim of %s for %r was restarted too often, and is rejected", node, request.client_id)
        elif outcome is Outcome.INVALID:
            if not self.claims_misdated:
                log.warning("%s claims %r with a time that no clock of the cluster shows yet", node, request.client_id)
            self.claims_misdated += 1
        refused = REFUSALS[outcome]
        if node == self._local:
            waiting = self._waiting.pop(request.number, None)
            if waiting is not None and not waiting.cancelled():
                waiting.set_result(refused)
            return
        self._take_asked(node, request)
        self._answer_rejected(node, request, refused)

    def _answer_rejected(self, node: Member, request: ClaimRequest, refused: Refused) -> None:
        self.claims_rejected += 1
        if (answers := self._nodes.get(node)) is not None:
            answers.reject(request.number, refused)

    # Time

    def _watch_time(self) -> None:
        if self._timer is not None:
            return
        due = self._claims.next_due
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - self._loop.time()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        actions = self._claims.expire(self._loop.time())
        for action in actions:
            if isinstance(action, Ended):
                self.claims_fenced += 1
                if (answers := self._nodes.get(action.owner.node)) is not None:
                    version = self._claims.version_of(action.client_id)
                    assert version is not None  # that of the channel that follows
                    answers.fence(action.client_id, version)
        self.carry_out(actions)

    def close(self) -> None:
        """The core stops."""
        self.upkeep.close()
        if self._timer is not None:
            self._timer.cancel()
