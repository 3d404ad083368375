"""Who owns a client id, decided at its home. Every CONNECT claims its client id there; the newest connection wins.

The life of a claim, in the names of the proposal of a linear channel registry:

    arrives       older than ``ver_LocalMax``, the highest version in the table          -> happy fail
    *begin*       a probe of that channel's node, which freezes nothing; it answers, or ``wait_s`` has passed
    is decided    in one turn, in which nothing is awaited. ``ver_RealMax`` is the highest version now, *seen* the predecessor
                  that the claim has dealt with:
                  older than ver_RealMax                                                 -> expensive fail
                  another channel is registered than the one seen                        -> restart with it, at most 3 times
                  else                                                                   -> happy ending: registered
    is granted    once the loser, which is told to end, has released the client id, or ``wait_s`` has passed since it arrived

The loser is *leaving* until its release arrives, so that a third claim finds both (R3). The release travels in the node's blocks,
behind everything that the client sent, and only it confirms that the channel is gone (C12, C17). A loser that was given up is
*fenced*: from then on the home refuses what comes from it.

Invariants:
- One channel of a client id is registered, and one owns it; their guards rise with every decision. The guard of a claim is fixed
  when it is decided and counts when it is granted (R13).
- Each grant ends once: by its release, by its node's death, or fenced by a later grant; and the home says so once (``Ended``).
- A channel arrives once: a claim that comes again gets its answer again, and one that has lost has lost (R11).
- A version counts for as long as an older claim may be under way, also when its channel has ended (R12).
- A client id has no owner that the home does not know: see `home_claims`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from math import inf
from typing import Final

from braidmq.cluster.clock.cluster_clock import BOUND_MS_MAX, ClockReading
from braidmq.cluster.registry.messages import (
    Action,
    ClaimGranted,
    ClaimRejected,
    ClaimRequest,
    Ended,
    Ending,
    EndLoser,
    Node,
    Outcome,
    Probe,
)
from braidmq.cluster.registry.table import ChannelEntry, ChannelTable, Contest, Peer, PendingClaim, owner_of, pack
from braidmq.cluster.registry.versions import NOT_KNOWN_MS, Stamp, Version, granted, is_older

RESTARTS_MAX: Final = 3
CLAIMS_MAX: Final = 100_000  # that are not granted
DEADLINE_S: Final = 15.0
_SLOW_CLOCK_MS: Final = 1000  # how much longer than its deadline a claim is remembered, since clocks differ


class ClaimDecisions(ChannelTable[Node]):
    """What a home decides. Each call returns what is to be done, in that order."""

    def __init__(
        self,
        wait_s: float,
        clock: Callable[[], int],
        *,
        deadline_s: float = DEADLINE_S,
        cluster_clock: Callable[[], ClockReading] | None = None,
        local: Node | None = None,
        guard_of_row: Callable[[str], int] | None = None,
        claims_max: int = CLAIMS_MAX,
        restarts_max: int = RESTARTS_MAX,
    ) -> None:
        """``wait_s``: for probe and release of a predecessor together. ``clock``: microseconds that never fall behind the log.

        ``deadline_s``: how long a node pursues a claim. ``cluster_clock``: judges versions; None: they are taken as they are.
        ``local``: the home itself as a node, which needs no probe. ``guard_of_row``: the guard in a client id's stored session.
        """
        super().__init__(clock, int(deadline_s * 1000) + _SLOW_CLOCK_MS)
        self._wait_s = wait_s
        self._cluster_clock = cluster_clock
        self._local = local
        self._guard_of_row = guard_of_row
        self._claims_max = claims_max
        self._restarts_max = restarts_max
        self._started = clock()
        self._dues: deque[tuple[float, str]] = deque()  # when a probe or an owner is given up, in order
        self._open = 0  # claims that are neither granted nor rejected
        self.outcomes: Counter[Outcome] = Counter()
        self.restarts = 0
        self.probes = 0
        self.given_up = 0  # losers that did not release in time

    @property
    def waiting(self) -> int:
        """Claims that are neither granted nor rejected."""
        return self._open

    # Claims

    def _arrive(self, peer: Peer[Node], claim: ClaimRequest, now: float) -> list[Action[Node]]:
        """A claim arrives for the first time."""
        if claim.number in peer.cancelled:
            peer.cancelled.discard(claim.number)
            return []
        if self._lately:
            self._forget()
        invalid = self._judge_times(claim)
        if invalid is not None:
            return self._reject(peer, claim, invalid)
        stamp = self._stamp(peer, claim)
        found = self._table.get(claim.client_id)
        if found is None:
            if self._is_before_row(claim):
                return self._reject(peer, claim, Outcome.HAPPY_FAIL)
            entry = self._register(peer, claim, stamp, self._clock(), None)
            self._table[claim.client_id] = entry
            return [self._granted(entry, claim, now)]
        highest = found.highest if isinstance(found, Contest) else found
        if highest is not None and is_older(stamp, self._comparable(peer, highest)):
            return self._reject(peer, claim, Outcome.HAPPY_FAIL)
        if self._open >= self._claims_max:
            return self._reject(peer, claim, Outcome.FULL)
        seen = found.registered if isinstance(found, Contest) else found
        pending = PendingClaim(peer, claim, stamp, now, now + self._wait_s, found.guard, seen)
        self._open += 1
        peer.open[claim.number] = pending
        actions = self._begin(self._contest(claim.client_id), pending, now)
        if claim.number in peer.open:
            self._dues.append((pending.due, claim.client_id))
        return actions

    def _judge_times(self, claim: ClaimRequest) -> Outcome | None:
        """Why a claim's times cannot be right by the clock of the home."""
        if self._cluster_clock is None or not claim.ms:
            return None
        reading = self._cluster_clock()
        if not reading.is_usable:
            return None  # a core that has just started does not know the time yet
        slack_ms = reading.bound_ms + claim.bound_ms
        if claim.bound_ms > BOUND_MS_MAX or claim.ms > reading.ms + slack_ms or claim.made_ms > reading.ms + slack_ms:
            return Outcome.INVALID
        return Outcome.LATE if reading.ms > claim.made_ms + self._deadline_ms + slack_ms else None

    def _stamp(self, peer: Peer[Node], claim: ClaimRequest) -> Stamp:
        if claim.ms:
            return Stamp(Version(claim.ms, peer.registration, claim.channel), claim.bound_ms, peer.node)
        reading = None if self._cluster_clock is None else self._cluster_clock()
        ms = self._clock() // 1000 if reading is None or not reading.is_usable else reading.ms
        return Stamp(Version(ms, peer.registration, claim.channel), NOT_KNOWN_MS, None)  # no clock of its own (R23)

    def _comparable(self, peer: Peer[Node], entry: ChannelEntry[Node]) -> Stamp:
        """What a claim of this node is compared with: exactly, if the channel is of the same node (R10)."""
        return entry.own if entry.peer is peer else entry.granted

    def _is_before_row(self, claim: ClaimRequest) -> bool:
        """Whether the stored session was granted after this connection began, and home and node have forgotten it (R12)."""
        if self._guard_of_row is None or not claim.ms or self._clock() > self._started + self._deadline_ms * 1000:
            return False
        now = self._clock()
        latest = now - claim.age_ms * 1000 + 1_000_000 + int(self._wait_s * 1_000_000)  # when its own grant may have been decided
        return latest < self._guard_of_row(claim.client_id) <= now

    def _begin(self, contest: Contest[Node], pending: PendingClaim[Node], now: float) -> list[Action[Node]]:
        """Deal with the predecessor: probe its node, unless that has just spoken."""
        seen = pending.seen
        if seen is None or self._has_spoken(pending, seen) or pending.due <= now:
            return self._decide(contest, pending, now)
        is_probed = any(other.seen is seen for other in contest.probing)
        contest.probing.append(pending)
        if is_probed:
            return []
        self.probes += 1
        return [Probe(seen.peer.node, seen.client_id, seen.channel)]

    def _has_spoken(self, pending: PendingClaim[Node], seen: ChannelEntry[Node]) -> bool:
        """Whether the node of a predecessor has spoken since the claim arrived (R18)."""
        return seen.guard > pending.floor or seen.peer is pending.peer or seen.peer.node == self._local

    def probed(self, node: Node, client_id: str, channel: int, now: float) -> list[Action[Node]]:
        """A node is there, whether or not it has the channel."""
        peer, contest = self._peers.get(node), self._table.get(client_id)
        entry = None if peer is None else peer.channels.get(channel)
        if entry is None or not isinstance(contest, Contest):
            return []
        return self._decide_probing(contest, entry, now)

    def _decide_probing(self, contest: Contest[Node], entry: ChannelEntry[Node], now: float | None = None) -> list[Action[Node]]:
        """Decide the claims that wait for the probe of a channel. Without ``now``, their time is not over."""
        actions: list[Action[Node]] = []
        while (pending := next((each for each in contest.probing if each.seen is entry), None)) is not None:
            contest.probing.remove(pending)
            actions += self._decide(contest, pending, pending.arrived if now is None else now)
        return actions

    def _decide(self, contest: Contest[Node], pending: PendingClaim[Node], now: float) -> list[Action[Node]]:
        """The deciding turn of a claim, which has waited for the probe of its predecessor for as long as it can."""
        highest = contest.highest
        if highest is not None and is_older(pending.stamp, self._comparable(pending.peer, highest)):
            return self._lose(contest, pending, Outcome.EXPENSIVE_FAIL)
        if contest.registered is not pending.seen:
            if pending.restarts >= self._restarts_max:
                return self._lose(contest, pending, Outcome.ABORT)
            pending.restarts += 1
            self.restarts += 1
            pending.seen = contest.registered
            return self._begin(contest, pending, now)
        return self._win(contest, pending, now)

    def _lose(self, contest: Contest[Node], pending: PendingClaim[Node], outcome: Outcome) -> list[Action[Node]]:
        self._close(pending)
        self._settle(pending.request.client_id, contest)
        return self._reject(pending.peer, pending.request, outcome)

    def _win(self, contest: Contest[Node], pending: PendingClaim[Node], now: float) -> list[Action[Node]]:
        """Happy ending: the claim is registered, and the channel before it has to leave."""
        actions: list[Action[Node]] = []
        loser, promised, highest = contest.registered, contest.promised, contest.highest
        contest.guard = max(contest.guard + 1, self._clock())
        entry = self._register(pending.peer, pending.request, pending.stamp, contest.guard, highest)
        contest.registered, contest.promised, contest.ended = entry, None, None
        if promised is not None:  # it never came so far that it had a channel to end
            assert loser is not None
            self._close(promised)
            loser.peer.channels.pop(loser.channel, None)
            actions += self._reject(promised.peer, promised.request, Outcome.EXPENSIVE_FAIL)
        elif loser is not None:
            contest.leaving.append(loser)
            contest.owner_due = pending.due
            actions.append(end_of(loser, entry.granted.version))
        if contest.owner is not None:
            contest.promised = pending
            if min(pending.due, contest.owner_due) <= now:  # who was given up in the probe is not waited for again
                actions += self._give_up(contest)
        else:
            self._close(pending)
            actions.append(self._grant(contest, entry, pending))
        if promised is not None and loser is not None:  # its node cannot answer for it any more
            actions += self._decide_probing(contest, loser)
        return actions

    def _register(
        self, peer: Peer[Node], claim: ClaimRequest, stamp: Stamp, guard: int, highest: ChannelEntry[Node] | None
    ) -> ChannelEntry[Node]:
        self.outcomes[Outcome.HAPPY_ENDING] += 1
        entry = ChannelEntry(claim.client_id, peer, claim.channel, guard, pack(stamp.version.ms, stamp.bound_ms))
        version = granted(stamp, None if highest is None else highest.granted)
        if version is not stamp or stamp.source is None:
            entry.lent = version
        peer.channels[claim.channel] = entry
        return entry

    def _grant(self, contest: Contest[Node], entry: ChannelEntry[Node], pending: PendingClaim[Node]) -> ClaimGranted[Node]:
        contest.owner = entry
        self._settle(entry.client_id, contest)
        return self._granted(entry, pending.request, pending.arrived, has_waited=True)

    def _granted(
        self, entry: ChannelEntry[Node], claim: ClaimRequest, arrived: float, *, has_waited: bool = False
    ) -> ClaimGranted[Node]:
        version, bound_ms, _ = entry.granted
        return ClaimGranted(entry.peer.node, claim, entry.guard, version, bound_ms, arrived, has_waited)

    def _reject(self, peer: Peer[Node], claim: ClaimRequest, outcome: Outcome) -> list[Action[Node]]:
        self.outcomes[outcome] += 1
        return [ClaimRejected(peer.node, claim, outcome)]

    def _close(self, pending: PendingClaim[Node]) -> None:
        """A claim is granted, rejected or withdrawn."""
        if pending.peer.open.pop(pending.request.number, None) is not None:
            self._open -= 1

    # The ends of channels

    def release(self, node: Node, channel: int, ending: Ending) -> list[Action[Node]]:
        """A channel has ended, and everything that its client sent has arrived; comes in a block.

        A block that comes again, because its answer was lost with the home, releases its channels again: the node has declared
        them. Then the ending is ``REPEATED``, since the will and the session's end are on disk with the block's mark.
        """
        peer = self._peers.get(node)
        entry = None if peer is None else peer.channels.pop(channel, None)
        return [] if entry is None else self._end(entry, ending)

    def _end(self, entry: ChannelEntry[Node], ending: Ending) -> list[Action[Node]]:
        """A channel is gone: claims that wait for an answer of its node are decided, then the one that has won is granted."""
        contest = self._contest(entry.client_id)
        actions: list[Action[Node]] = []
        if entry in contest.leaving:
            contest.leaving.remove(entry)
        if contest.kicked is entry:
            contest.kicked = None
        if contest.registered is entry:
            contest.registered = None
            if contest.promised is not None:
                self._close(contest.promised)
                contest.promised = None
        self._remember(contest, entry)
        actions += self._decide_probing(contest, entry)
        if contest.owner is entry:
            actions += self._free(contest, ending)
        self._settle(entry.client_id, contest)
        return actions

    def _free(self, contest: Contest[Node], ending: Ending) -> list[Action[Node]]:
        """The owner owns its client id no more: grant it to the channel that is registered, if that waits."""
        owner, promised = contest.owner, contest.promised
        assert owner is not None
        contest.owner = contest.promised = None
        contest.owner_due = inf
        ended = Ended(owner.client_id, owner_of(owner), ending, owner.granted.version)
        if promised is None or contest.registered is None:
            return [ended]
        self._close(promised)
        return [ended, self._grant(contest, contest.registered, promised)]

    def _give_up(self, contest: Contest[Node]) -> list[Action[Node]]:
        """The owner has not released in time: it is fenced."""
        self.given_up += 1
        return self._free(contest, Ending.TAKEN)

    def expire(self, now: float) -> list[Action[Node]]:
        """Give up the predecessors that have not answered in time."""
        actions: list[Action[Node]] = []
        while self._dues and self._dues[0][0] <= now:
            contest = self._table.get(self._dues.popleft()[1])
            if not isinstance(contest, Contest):
                continue
            if contest.promised is not None and min(contest.promised.due, contest.owner_due) <= now:
                actions += self._give_up(contest)
            for pending in [each for each in contest.probing if each.due <= now]:
                contest.probing.remove(pending)
                actions += self._decide(contest, pending, now)
        return actions

    @property
    def next_due(self) -> float | None:
        """When ``expire`` is to be called; there may be nothing to do by then."""
        while self._dues:
            contest = self._table.get(self._dues[0][1])
            if isinstance(contest, Contest) and (contest.probing or contest.promised is not None):
                return self._dues[0][0]
            self._dues.popleft()
        return None

    def withdraw(self, node: Node, claim: ClaimRequest) -> list[Action[Node]]:
        """A node no longer wants what it has claimed, granted or not; comes in a block."""
        peer = self._peer(node)
        pending = peer.open.get(claim.number)
        if pending is not None:
            return self._abandon(pending)
        if claim.channel in peer.channels:
            return self.release(node, claim.channel, Ending.WITHDRAWN)
        if claim.number > (peer.claimed or 0):
            peer.cancelled.add(claim.number)
        return []

    def _abandon(self, pending: PendingClaim[Node]) -> list[Action[Node]]:
        """A claim that is not granted is void. If it was registered, its version counts on, and its loser leaves all the same."""
        self._close(pending)
        contest = self._table.get(pending.request.client_id)
        assert isinstance(contest, Contest)
        actions: list[Action[Node]] = []
        if contest.promised is pending and contest.registered is not None:
            entry, contest.registered, contest.promised = contest.registered, None, None
            entry.peer.channels.pop(entry.channel, None)
            self._remember(contest, entry)
            actions += self._decide_probing(contest, entry)
        elif pending in contest.probing:
            contest.probing.remove(pending)
        self._settle(pending.request.client_id, contest)
        return actions

    def _is_promised(self, pending: PendingClaim[Node]) -> bool:
        """Whether a claim has won, and waits for the owner's release."""
        contest = self._table.get(pending.request.client_id)
        return isinstance(contest, Contest) and contest.promised is pending

    def kick(self, client_id: str, node: Node, channel: int, now: float) -> list[Action[Node]]:
        """End this very channel, if it is registered; no other one, whatever has happened meanwhile."""
        found = self._table.get(client_id)
        entry = found.registered if isinstance(found, Contest) else found
        if entry is None or (entry.peer.node, entry.channel) != (node, channel):
            return []
        contest = self._contest(client_id)
        if contest.promised is not None:
            promised = contest.promised
            decided = self._abandon(promised)
            return [*self._reject(promised.peer, promised.request, Outcome.EXPENSIVE_FAIL), *decided]
        contest.registered = None
        contest.leaving.append(entry)
        contest.kicked = entry
        contest.owner_due = now + self._wait_s
        self._dues.append((contest.owner_due, client_id))
        return [end_of(entry, entry.granted.version, is_kicked=True)]


def end_of(entry: ChannelEntry[Node], version: Version, *, is_kicked: bool = False) -> EndLoser[Node]:
    """Tell the node of a channel to end it."""
    return EndLoser(entry.peer.node, entry.client_id, version, entry.channel, is_kicked)
