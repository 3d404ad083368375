"""What moving sessions between the core and its nodes needs of the broker, and where its answers go."""

from __future__ import annotations

from typing import Protocol

from braidmq.access.contract import Refused
from braidmq.broker.messages.producer_books import ProducerBooks
from braidmq.broker.persistence import TurnWriter
from braidmq.broker.session.flows import Flows
from braidmq.broker.session.lifecycle import Lifecycle
from braidmq.broker.session.ports import ExclusiveTopics
from braidmq.broker.session.restoration import Restoration
from braidmq.broker.session.session import SessionTable
from braidmq.broker.session.wills import Wills
from braidmq.broker.shared.binding import GroupBinding
from braidmq.broker.shared.group import Groups
from braidmq.broker.timers import Timers
from braidmq.cluster.home.sessions.held_session import GivenSession
from braidmq.cluster.membership.member import Member
from braidmq.cluster.registry.messages import ClaimGranted
from braidmq.cluster.registry.versions import Version
from braidmq.lane.path.state import State
from braidmq.lane.routing.routes import RouteTable


class SessionServices(Protocol):
    """What the core's broker does for its home; the broker's parts."""

    @property
    def sessions(self) -> SessionTable: ...
    @property
    def lifecycle(self) -> Lifecycle: ...
    @property
    def restoration(self) -> Restoration: ...
    @property
    def wills(self) -> Wills: ...
    @property
    def flows(self) -> Flows: ...
    @property
    def routes(self) -> RouteTable: ...
    @property
    def state(self) -> State: ...
    @property
    def turn_writer(self) -> TurnWriter: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def sharing(self) -> GroupBinding: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def exclusive(self) -> ExclusiveTopics: ...
    @property
    def producer_books(self) -> ProducerBooks | None: ...


class ClaimAnswers(Protocol):
    """Where the answers to a node's claims go."""

    def grant(self, granted: ClaimGranted[Member], given: GivenSession) -> None:
        """The claim is granted."""

    def reject(self, number: int, refused: Refused) -> None:
        """The claim is rejected."""

    def probe(self, client_id: str, channel: int) -> None:
        """Say that you are there: a channel is about to lose its client id."""

    def end(self, client_id: str, version: Version, kicked: int = 0) -> None:
        """End the channels of the client id with lower versions, or one that is kicked."""

    def fence(self, client_id: str, version: Version) -> None:
        """They are fenced: say it once more, ahead of every message from now on."""

    def sweep(self, first: int, last: int) -> None:
        """Name your channels in this range."""

    def redeclare(self, channels: list[int]) -> None:
        """Declare these channels."""

    def close_channel(self, channel: int, reason: int, detail: str) -> None:
        """Close the connection of a channel."""


class GrantAnswer(Protocol):
    """Answers a claim that the registry has granted."""

    def send(self, given: GivenSession) -> None:
        """What the grant says is on disk."""

    def refuse(self, refused: Refused) -> None:
        """The client cannot be the producer that it asks to be: the claim is rejected after all."""
