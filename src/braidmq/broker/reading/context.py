"""The services that readers of the log use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from braidmq.broker.ports import Change, RowWriter
from braidmq.broker.reading.slots import IdleReaders, Readers
from braidmq.broker.reading.source import LogSource
from braidmq.broker.session.session import Session
from braidmq.broker.shared.group import Group
from braidmq.broker.statistics import Statistics
from braidmq.lane.flows.delivery import Delivery
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.path.state import State
from braidmq.lane.records.records import Record
from braidmq.lane.routing.delivery_rules import copy_qos, copy_retain
from braidmq.lane.routing.subscription import Subscription


class DeliverHooks(Protocol):
    """Whether operators' hooks are asked before a delivery."""

    @property
    def delivers(self) -> Sequence[object]:
        """The hooks that are asked; empty if there are none."""


class SessionRows(Protocol):
    """The rows of sessions, as far as readers change them."""

    def cursor_changes(self, session: Session) -> list[Change]:
        """The rows that say where the session and its replays are."""

    def subscription_row(self, session: Session, written: str) -> Change:
        """The row of one subscription."""


class Redeliveries(Protocol):
    """Takes messages in flight that were read back from the log."""

    def found(self, session: Session, packet_id: int, delivery: Delivery, message: Message) -> None:
        """The message of a delivery in flight was read."""

    def lost(self, session: Session, packet_id: int, delivery: Delivery) -> None:
        """The message of a delivery in flight was deleted by retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingContext:
    """Made once by the broker; every reader has a reference to it."""

    source: LogSource
    state: State
    statistics: Statistics
    hooks: DeliverHooks
    ask_hooks: Callable[[Message, str], Message | None]  # the message as this client gets it; None if a hook withholds it
    readers: Readers  # the slots of replays
    idle_readers: IdleReaders  # the slots of catch-up
    rows: SessionRows
    redelivery: Redeliveries
    writer: RowWriter
    route: Callable[[Session, bytes], None]  # the session's subscriptions to this filter have changed
    relieve_groups: Callable[[Iterable[Group]], None]  # a member of these groups takes messages again

    def send(self, flow: LogFlow, subscription: Subscription, shard: int, record: Record) -> bool:
        """Send a record unless it has expired or a hook withholds it; False if there is no room for it now."""
        message = from_record(shard, record)
        expiry = message.seconds_left()
        if expiry == 0:
            self.state.drop_expired(flow.client_id, message.topic)
            return True
        if self.hooks.delivers:
            changed = self.ask_hooks(message, flow.client_id)
            if changed is None:
                return True
            message = changed
        if not flow.take(message, subscription, copy_qos(message, subscription), copy_retain(message, subscription), expiry):
            return False
        self.state.counters.delivered += 1
        return True

    def note_gap(self, session: Session) -> None:
        """Retention deleted records before the session could read them."""
        session.gaps += 1
        self.statistics.lost_to_retention += 1
