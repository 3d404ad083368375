"""Sessions at their home: those that live on a node, how they go there, and how they come back.

A session without a client waits at the core, as on a single node. When a node is granted its client id, the core gives the
session up: the node gets its rows and makes a session of them. From then on the node writes the rows, in its blocks, and the core
*holds* for it only what must not be lost with the node:

- the subscriptions of a durable session, as routes that deliver nothing (`held_routes`);
- the will of a session that ends with its connection. That of a durable session is among its rows.

When the channel ends, or its node dies, the session comes back: once the node's last rows are on disk, the core restores it from
them, as after a restart. Whatever else wants the client id waits for that (``after_return``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from braidmq.access.contract import Refused
from braidmq.base.errors import Unavailable
from braidmq.broker.messages.producer_books import NotTaken, ProducerStart
from braidmq.broker.ports import Change, CursorRow, Refusal, SessionStore, StoredSession, SubscriptionRow
from braidmq.broker.session.ports import GrantEnding
from braidmq.broker.session.session import Session
from braidmq.broker.session.takeover import Facts, Old, resolve
from braidmq.broker.shared.group import group_of
from braidmq.cluster.cores.durable_routes import NotedRoutes
from braidmq.cluster.home.lending import Lending
from braidmq.cluster.home.sessions.held_routes import HeldRoutes
from braidmq.cluster.home.sessions.held_session import GivenSession, Held, KeyedOnNode, NodeClaim
from braidmq.cluster.home.sessions.session_ports import GrantAnswer, SessionServices
from braidmq.cluster.home.sessions.wills import HomeWills
from braidmq.cluster.membership.led_shards import LedShards
from braidmq.cluster.membership.member import Member
from braidmq.cluster.protocol.operations import JoinGroup, encode_session
from braidmq.cluster.registry.messages import Ending
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.producer_protocol import Request
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import EXCLUSIVE_PREFIX

log = logging.getLogger("braidmq.cluster")

_PROTECTED: Final = Refused(Reason.NOT_AUTHORIZED, "the session of this client id belongs to a user: log in, or use another id")
_FULL: Final = Refused(Reason.QUOTA_EXCEEDED, "too many sessions")
_NOT_STORED: Final = Refused(Reason.QUOTA_EXCEEDED, "the session cannot be stored")
_NOT_READ: Final = Refused(Reason.SERVER_UNAVAILABLE, "the log cannot be read now")


class HomeSessions:
    """Moves sessions between the core and its nodes."""

    def __init__(
        self,
        broker: SessionServices,
        has_users: Callable[[], bool],
        sessions_max: Callable[[], int],
        close_channel: Callable[[Member, int, int, str], None],
        noted: NotedRoutes | None = None,
        led: LedShards | None = None,
    ) -> None:
        """``close_channel`` lets a node close the connection of a channel, with a reason.

        ``noted``: makes durable routes for other cores. ``led``: the shards of this one. None: it is the only one.
        """
        self._table = broker.sessions
        self._lifecycle = broker.lifecycle
        self._restoration = broker.restoration
        self._writer = broker.turn_writer
        self._rows: SessionStore = broker.turn_writer.storage.sessions
        assert broker.producer_books is not None, "a home has the rows of its producers"
        self._books = broker.producer_books
        self._close_channel = close_channel
        self._has_users = has_users
        self._sessions_max = sessions_max
        self.lending = Lending(broker, led)
        self.wills = HomeWills(broker.sessions, broker.flows, broker.wills, broker.timers, broker.turn_writer)
        self._held_routes = HeldRoutes(broker.routes if noted is None else noted, noted, broker.exclusive, broker.state)
        self._held: dict[str, Held] = {}
        self._returning: dict[str, list[Callable[[], None]]] = {}  # what waits for a session that comes back
        self._is_closed = False

    def __len__(self) -> int:
        """Sessions that live on nodes."""
        return len(self._held)

    @property
    def held_routes(self) -> int:
        """Routes of durable sessions on nodes, in the core's routes."""
        return self._held_routes.count

    def refusal(self, client_id: str, user_name: str | None, asked: int) -> Refused | None:
        """Why a client of this user cannot have the client id; None if it can. Asked before its owner is disturbed.

        ``asked``: how many others were told that they can have new sessions, and have none yet.
        """
        session = self._table.get(client_id)
        held = self._held.get(client_id)
        owner = session.user_name if session is not None else held.claim.user_name if held is not None else None
        if owner is not None and user_name is None and self._has_users():
            return _PROTECTED
        if session is None and held is None and len(self._table) + len(self._held) + asked >= self._sessions_max():
            return _FULL
        return None

    def has(self, client_id: str) -> bool:
        """Whether the client id has a session, here or on a node."""
        return client_id in self._held or self._table.get(client_id) is not None

    def user_of(self, client_id: str) -> str | None:
        """The user of a session that lives on a node."""
        held = self._held.get(client_id)
        return None if held is None else held.claim.user_name

    def node_of(self, client_id: str) -> str | None:
        """The name of the node that a session lives on."""
        held = self._held.get(client_id)
        return None if held is None else held.node.name

    def claim_of(self, client_id: str, guard: int) -> NodeClaim | None:
        """The claim that was granted with this guard, while its session lives on the node."""
        held = self._held.get(client_id)
        return held.claim if held is not None and held.guard == guard else None

    def close(self) -> None:
        """The core stops: its log is about to be closed, and answers what it still has to write."""
        self._is_closed = True

    # Out

    def judge_producer(self, claim: NodeClaim) -> NotTaken | None:
        """Why a client cannot be the producer that its claim asks for; None if it can, or asks for nothing."""
        if claim.producer is None:
            return None
        return self._books.judge(claim.producer, claim.request.client_id, claim.user_name)

    def hand_out(self, node: Member, claim: NodeClaim, guard: int, answer: GrantAnswer) -> None:
        """Give the session of a granted claim to a node."""
        self.after_return(claim.request.client_id, partial(self._hand_out, node, claim, guard, answer))

    def _hand_out(self, node: Member, claim: NodeClaim, guard: int, answer: GrantAnswer) -> None:
        client_id = claim.request.client_id
        self.wills.note_grant(client_id)
        session = self._table.get(client_id)
        held = self._held.get(client_id)
        if held is not None and held.guard == guard:  # the node asks again, because it has lost the answer
            self._send_written(held, (), answer)
            return
        not_taken = self.judge_producer(claim)  # others may have come since it was asked
        if not_taken is not None:
            answer.refuse(not_taken)
            return
        held = self._held[client_id] = Held(node, claim, guard)
        if session is None and claim.producer is None:
            self._send(held, b"", answer)
            return
        if session is not None:
            self._take_session(held, session)
        rows = () if claim.producer is None else self._open_producer(held, claim.producer)
        self._send_written(held, rows, answer)

    def _take_session(self, held: Held, session: Session) -> None:
        """The session that waits here goes to the node, or ends for it."""
        if self._continues(session, held.claim):
            self._move(held, session)
        else:
            held.replaces_user = session.user_name is not None
            self._lifecycle.end(session, GrantEnding.TAKEN)

    def _open_producer(self, held: Held, asked: Request) -> list[Change]:
        """The rows that must be on disk before a producer is told where it begins."""
        close = partial(self._close_channel, held.node, held.claim.request.channel)
        held.keyed = KeyedOnNode(held.claim.user_name, close)
        return self._books.opening(held.keyed, asked)

    def _send_written(self, held: Held, rows: Iterable[Change], answer: GrantAnswer) -> None:
        """Answer when these rows, and everything before them, are on disk."""
        on_commit = partial(self._send_stored, held, answer)
        if held.claim.producer is None:
            self._writer.change(rows, on_commit, lambda refusal: on_commit())
        else:
            self._writer.change(rows, on_commit, lambda refusal: self._fail(held, answer))

    def _fail(self, held: Held, answer: GrantAnswer) -> None:
        """The rows of a producer could not be written."""
        if self._held.get(held.claim.request.client_id) is held and not self._is_closed:
            answer.refuse(_NOT_STORED)

    def _continues(self, session: Session, claim: NodeClaim) -> bool:
        facts = Facts(
            has_session=True,
            expiry_s=session.expiry_s,
            is_open=session.is_open_to(claim.user_name),
            clean_start=claim.clean_start,
        )
        row = resolve(facts).row
        assert row.old is Old.AWAY  # what is the core's own waits for a client
        return bool(row.session_present)

    def _send_stored(self, held: Held, answer: GrantAnswer) -> None:
        client_id = held.claim.request.client_id
        if self._held.get(client_id) is not held or self._is_closed:
            return  # the channel has ended meanwhile
        not_taken = self.judge_producer(held.claim)  # a later batch may have begun while this one waited for the disk
        if not_taken is not None:
            answer.refuse(not_taken)
            return
        stored = self._rows.load_one(client_id)
        self._send(held, b"" if stored is None else encode_session(stored), answer)

    def _send(self, held: Held, rows: bytes, answer: GrantAnswer) -> None:
        claim = held.claim
        start: ProducerStart | None = None
        if claim.producer is not None:
            try:
                start = self._books.start(claim.request.client_id, claim.user_name, claim.producer)
            except Unavailable:
                answer.refuse(_NOT_READ)
                return
        answer.send(GivenSession(rows, start, held.replaces_user))

    def _move(self, held: Held, session: Session) -> None:
        """The core forgets a session that goes to a node, and keeps what must not be lost with the node."""
        topics = [each.topic_filter for written, each in session.subscriptions.items() if written.startswith(EXCLUSIVE_PREFIX)]
        if session.is_durable:  # also without subscriptions: it comes back if the node dies at once
            self._held_routes.make_durable(held)
        self._keep_routes(held, session)
        self._lifecycle.hand_over(session)
        for topic_filter in topics:
            self._held_routes.hold_exclusive(held, topic_filter)

    def _keep_routes(self, held: Held, session: Session) -> None:
        """Keep the subscriptions of a durable session, so that messages for it are recorded while it is on its way."""
        shared: list[Subscription] = []
        for written, subscription in session.subscriptions.items():
            if group_of(subscription) is None:
                self._held_routes.add(held, written, subscription.qos)
            else:
                shared.append(subscription)
                self._held_routes.add_share(held, written)
        if shared:
            self._held_routes.make_durable(held)
            self.lending.expect(session.client_id, held.node, held.claim.request.channel, shared)

    # What the node writes

    def session_written(self, client_id: str) -> None:
        """The node has written the row of a session: it is durable."""
        held = self._held.get(client_id)
        if held is not None:
            self._held_routes.make_durable(held)

    def member_joined(self, asked: JoinGroup) -> None:
        """A client on a node has become a member of a shared group."""
        held = self._held.get(asked.client_id)
        if held is not None:
            user = held.claim.user_name
            owner = ("client", asked.client_id) if user is None else ("user", user)
            self.lending.join(asked, held.node, held.claim.request.channel, owner)

    def may_join(self, asked: JoinGroup) -> bool:
        """Whether a client on a node may be a member of a group."""
        held = self._held.get(asked.client_id)
        return held is None or self.lending.may_join(asked, held.node, held.claim.request.channel)

    def take_over(self, client_id: str, cursor: CursorRow) -> list[Change]:
        """Rows of shared groups to write with the cursor of a session."""
        return self.lending.take_over(client_id, cursor)

    def take_exclusive(self, client_id: str, topic_filter: bytes) -> bool:
        """Give an exclusive topic to a client on a node; False if another client has it."""
        held = self._held.get(client_id)
        return held is not None and self._held_routes.take_exclusive(held, topic_filter)

    def release_exclusive(self, client_id: str, topic_filter: bytes) -> None:
        """A client on a node has given an exclusive topic up."""
        held = self._held.get(client_id)
        if held is not None:
            self._held_routes.release_exclusive(held, topic_filter)

    def subscription_written(self, client_id: str, written: str, row: SubscriptionRow | None) -> None:
        """The node has written or removed the row of a subscription."""
        held = self._held.get(client_id)
        if held is None:
            return
        if row is not None:
            self._held_routes.add(held, written, row.qos)
        else:
            self._held_routes.remove(held, written)

    def session_removed(self, client_id: str) -> None:
        """The node has removed the rows of a session."""
        held = self._held.get(client_id)
        if held is not None:
            self._held_routes.remove_all(held)

    # Back

    def come_back(self, client_id: str, guard: int, ending: Ending) -> None:
        """A channel of a node has ended: its session is the core's again, once the node's last rows are on disk."""
        held = self._held.get(client_id)
        if held is None or held.guard != guard:
            return
        if held.keyed is not None:
            held.keyed.is_closed = True
            self._books.leave(held.keyed)
        if held.flow is None:
            del self._held[client_id]
            self.lending.end(client_id, is_dead=ending is Ending.DIED)
            self._held_routes.release_all(held)
            self.wills.end_claim(held.claim, ending)
            for callback in held.on_left:
                callback()
            return
        self.lending.stop(client_id)
        self._returning[client_id] = held.on_left
        restore = partial(self._restore, client_id, held, ending)
        self._writer.change((), restore, lambda refusal: self._restore_unwritten(refusal, restore))

    def _restore_unwritten(self, refusal: Refusal, restore: Callable[[], None]) -> None:
        log.warning("a session comes back without its last changes, which could not be written: %s", refusal.reason)
        restore()

    def _restore(self, client_id: str, held: Held, ending: Ending) -> None:
        if self._is_closed:
            return  # the next start finds its rows
        del self._held[client_id]
        stored = self._rows.load_one(client_id)
        self._held_routes.release_all(held)  # the session takes its own again
        if stored is not None:
            self._wait_here(stored, ending)
        else:
            self.wills.end_claim(held.claim, ending)  # the session never came to the disk
        self._held_routes.remove_all(held)
        self.lending.end(client_id, is_dead=ending is Ending.DIED)
        for callback in self._returning.pop(client_id):
            callback()

    def _wait_here(self, stored: StoredSession, ending: Ending) -> None:
        session = self._restoration.restore(stored, waits=True)
        self.wills.end_channel(session, ending)
        if session.expiry_s == 0:  # its client has said so in DISCONNECT
            self._lifecycle.end(session)

    def is_returning(self, client_id: str) -> bool:
        """Whether the session of a client id is on its way back from a node."""
        return client_id in self._returning

    def after_return(self, client_id: str, callback: Callable[[], None]) -> None:
        """Call back when the session of a client id is the core's own: at once, unless it is on its way back."""
        waiting = self._returning.get(client_id)
        if waiting is None:
            callback()
        else:
            waiting.append(callback)

    def after_leaving(self, client_id: str, callback: Callable[[], None]) -> None:
        """Call back when no node has the session of a client id: at once, unless one has."""
        held = self._held.get(client_id)
        if held is not None and client_id not in self._returning:
            held.on_left.append(callback)
        else:
            self.after_return(client_id, callback)

    async def wait_left(self, client_id: str) -> None:
        """Wait until no node has the session of a client id."""
        left = asyncio.Event()
        self.after_leaving(client_id, left.set)
        await left.wait()

    def hold_again(self, node: Member, claim: NodeClaim, guard: int) -> None:
        """A node has declared that its channel owns the client id, after a restart of the core or a lost connection."""
        client_id = claim.request.client_id
        held = self._held.get(client_id)
        if held is not None and held.guard == guard:
            return  # the core has not restarted
        held = self._held[client_id] = Held(node, claim, guard)
        session = self._table.get(client_id)
        if session is not None:
            self._move(held, session)
