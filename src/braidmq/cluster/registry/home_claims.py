"""A home's side of claims over restarts, lost connections and deaths; `decisions` has what it decides.

Each node that the home meets first *declares* its channels and open claims. After a restart the home grants nothing until every
live node has, is dead, or was silent for a lease (C16). Of the declared channels of a client id the one with the highest granted
version is registered, whichever guards they have; the others leave, and so do those below a version that ended lately (R15).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from braidmq.cluster.registry.decisions import ClaimDecisions, end_of
from braidmq.cluster.registry.messages import (
    Action,
    ClaimGranted,
    ClaimRequest,
    Declaration,
    Ended,
    Ending,
    GrantedChannel,
    Node,
    Outcome,
    OwnerRestored,
    Probe,
)
from braidmq.cluster.registry.table import ChannelEntry, Contest, Peer, owner_of, pack
from braidmq.cluster.registry.versions import Stamp, Version, is_older


class HomeClaims(ClaimDecisions[Node]):
    """The home's side. Each call returns what is to be done, in that order."""

    def __init__(
        self,
        wait_s: float,
        clock: Any,
        undeclared: Iterable[Node] = (),
        **options: Any,
    ) -> None:
        """``undeclared``: after a restart, the live nodes. ``options``: those of `ClaimDecisions`."""
        super().__init__(wait_s, clock, **options)
        self._undeclared = set(undeclared)
        self._early: list[tuple[Peer[Node], ClaimRequest]] = []

    @property
    def is_ready(self) -> bool:
        """Whether every node has declared its channels: before that the home takes no blocks and ends no session."""
        return not self._undeclared

    def has_heard(self, node: Node) -> bool:
        """Whether the node has declared its channels: before that none of its blocks is taken."""
        peer = self._peers.get(node)
        return peer is not None and peer.claimed is not None

    # Claims

    def claim(self, node: Node, claim: ClaimRequest, now: float) -> list[Action[Node]]:
        """A node claims a client id for a new channel, or repeats a claim that was not answered.

        It has declared before: a declaration travels on the connection of the claims, ahead of them.
        """
        peer = self._peer(node)
        if claim.number <= (peer.claimed or 0):
            return self._repeat(peer, claim)
        peer.claimed = claim.number
        return self._receive(peer, claim, now)

    def _receive(self, peer: Peer[Node], claim: ClaimRequest, now: float) -> list[Action[Node]]:
        if not self._undeclared or claim.number in peer.cancelled:
            return self._arrive(peer, claim, now)
        if len(self._early) >= self._claims_max:
            return self._reject(peer, claim, Outcome.FULL)
        self._early.append((peer, claim))
        return []

    def _repeat(self, peer: Peer[Node], claim: ClaimRequest) -> list[Action[Node]]:
        """Answer as before: a claim arrives once, or an older one could end a newer one (R11)."""
        if claim.number in peer.open or (peer, claim) in self._early:
            return []
        entry = peer.channels.get(claim.channel)
        if entry is None:
            return self._reject(peer, claim, Outcome.EXPENSIVE_FAIL)
        version, bound_ms, _ = entry.granted
        granted = ClaimGranted(peer.node, claim, entry.guard, version, bound_ms)
        return [*self._ends(entry), granted]  # if it has ended meanwhile, the node has to release it

    def withdraw(self, node: Node, claim: ClaimRequest) -> list[Action[Node]]:
        """A node no longer wants what it has claimed, granted or not; comes in a block."""
        peer = self._peer(node)
        if (peer, claim) in self._early:
            self._early.remove((peer, claim))
            return []
        return super().withdraw(node, claim)

    # Nodes

    def connected(self, node: Node) -> list[Action[Node]]:
        """The node's connection was lost and is there again: tell it again what it may not have heard."""
        peer = self._peers.get(node)
        if peer is None:
            return []
        return [action for entry in peer.channels.values() for action in self._ends(entry)]

    def _ends(self, entry: ChannelEntry[Node]) -> list[Action[Node]]:
        """What the node of a channel has to be told again: that it ends, or to answer a probe."""
        contest = self._table.get(entry.client_id)
        if not isinstance(contest, Contest):
            return []
        if entry in contest.leaving:
            highest = contest.highest
            assert highest is not None
            return [end_of(entry, highest.granted.version, is_kicked=contest.kicked is entry)]
        if any(pending.seen is entry for pending in contest.probing):
            return [Probe(entry.peer.node, entry.client_id, entry.channel)]
        return []

    def dead(self, node: Node, now: float) -> list[Action[Node]]:
        """The node is dead: its channels have ended, its claims are void."""
        actions: list[Action[Node]] = []
        self._early = [each for each in self._early if each[0].node != node]
        peer = self._peers.get(node)
        if peer is not None:
            for pending in sorted(peer.open.values(), key=self._is_promised):  # so that none of its own is decided instead
                actions += self._abandon(pending)
            for channel in list(peer.channels):
                actions += self.release(node, channel, Ending.DIED)
            del self._peers[node]
        return [*actions, *self._declared(node, now)]

    # After a restart

    def declare(self, node: Node, declared: Declaration, now: float) -> list[Action[Node]]:
        """A node that has met this home for the first time, or after a restart, names its channels and open claims.

        A channel that is declared late loses against one that was granted meanwhile.
        """
        peer = self._peer(node)
        actions = self.restore(node, declared.channels)
        for channel in declared.ended:
            actions += self._recall(peer, channel, now)
        if peer.claimed is not None:  # it does not know that it was heard, and declares again
            return actions + [action for claim in declared.claims for action in self.claim(node, claim, now)]
        peer.claimed = declared.claimed
        for claim in declared.claims:
            actions += self._receive(peer, claim, now)
        return [*actions, *self._declared(node, now)]

    def restore(self, node: Node, channels: Iterable[GrantedChannel]) -> list[Action[Node]]:
        """A node names channels that it serves."""
        peer, actions = self._peer(node), list[Action[Node]]()
        for channel in channels:
            known = peer.channels.get(channel.channel)
            actions += self._restore(peer, channel) if known is None else self._ends(known)
        return actions

    def _restore(self, peer: Peer[Node], channel: GrantedChannel) -> list[Action[Node]]:
        """A channel of an earlier term: it is registered if its version is the highest so far, or leaves."""
        entry = self._entry(peer, channel)
        peer.channels[channel.channel] = entry
        contest = self._contest(channel.client_id)
        highest, before = contest.highest, contest.registered
        if highest is not None and (self.is_ready or entry.granted.version < highest.granted.version):
            contest.leaving.append(entry)
            return [end_of(entry, highest.granted.version)]
        row_guard = 0 if self._guard_of_row is None else self._guard_of_row(channel.client_id)
        if entry.guard <= contest.guard or entry.guard < row_guard:  # an acting home's guards are not those of the rows
            entry.guard = max(contest.guard + 1, row_guard + 1, self._clock())
        contest.guard = entry.guard
        contest.ended = None
        actions: list[Action[Node]] = []
        if before is not None:
            contest.leaving.append(before)
            actions += [
                Ended(channel.client_id, owner_of(before), Ending.TAKEN, before.granted.version),
                end_of(before, entry.granted.version),
            ]
        contest.registered = contest.owner = entry
        self._settle(channel.client_id, contest)
        return [*actions, OwnerRestored(channel.client_id, owner_of(entry))]

    def _recall(self, peer: Peer[Node], channel: GrantedChannel, now: float) -> list[Action[Node]]:
        """A channel that has ended lately: what is below it has lost (R12)."""
        entry = self._entry(peer, channel)
        contest = self._contest(channel.client_id)
        highest, loser = contest.highest, contest.registered
        if highest is not None and (self.is_ready or entry.granted.version <= highest.granted.version):
            self._settle(channel.client_id, contest)
            return []
        contest.guard = max(contest.guard, entry.guard)
        contest.registered = None
        self._remember(contest, entry)
        if loser is None:
            return []
        contest.leaving.append(loser)
        contest.owner_due = now + self._wait_s
        return [end_of(loser, entry.granted.version)]

    def _entry(self, peer: Peer[Node], channel: GrantedChannel) -> ChannelEntry[Node]:
        stamp = pack(channel.ms or channel.version.ms, channel.own_bound_ms)
        entry = ChannelEntry(channel.client_id, peer, channel.channel, channel.guard, stamp)
        if entry.own.version != channel.version:
            entry.lent = Stamp(channel.version, channel.bound_ms, self._source(channel.version))
        return entry

    def _source(self, version: Version) -> Node | None:
        """The node whose clock has shown a version, if it lives."""
        found = (peer.node for peer in self._peers.values() if peer.registration == version.registration)
        return next(found, None) if version.registration else None

    def silent(self, node: Node, now: float) -> list[Action[Node]]:
        """The node has said nothing for a lease: do not wait for its declaration."""
        return self._declared(node, now)

    def begin(self, now: float) -> list[Action[Node]]:
        """To be called once, after a restart: there may be no node to wait for."""
        return self._take_up(now) if self.is_ready else []

    def _declared(self, node: Node, now: float) -> list[Action[Node]]:
        if node not in self._undeclared:
            return []
        self._undeclared.discard(node)
        return self._take_up(now) if self.is_ready else []

    def _take_up(self, now: float) -> list[Action[Node]]:
        """Every node has been heard: claims are decided."""
        early, self._early = self._early, []
        newest: dict[str, Stamp] = {}
        stamped = [(peer, claim, self._stamp(peer, claim)) for peer, claim in early]
        for _, claim, stamp in stamped:
            if claim.client_id not in newest or newest[claim.client_id].version < stamp.version:
                newest[claim.client_id] = stamp
        actions: list[Action[Node]] = []
        for peer, claim, stamp in stamped:
            if is_older(stamp, newest[claim.client_id]):
                actions += self._reject(peer, claim, Outcome.HAPPY_FAIL)
            else:
                actions += self._arrive(peer, claim, now)
        return actions
