"""A granted claim of a node, until what the grant says is on disk."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from braidmq.access.contract import Refused
from braidmq.cluster.home.sessions.held_session import GivenSession
from braidmq.cluster.membership.member import Member
from braidmq.cluster.registry.messages import ClaimGranted, ClaimRequest


class GrantingRegistry(Protocol):
    """Whose grant it is; `registry.HomeRegistry`."""

    def send_grant(self, granted: ClaimGranted[Member], given: GivenSession) -> None:
        """Tell the node."""
        ...

    def take_back(self, node: Member, request: ClaimRequest, refused: Refused) -> None:
        """Reject the claim after all."""
        ...


class GrantedClaim(Struct, frozen=True, gc=False):
    """A granted claim of a node that is not answered; implements `session_ports.GrantAnswer`."""

    registry: GrantingRegistry
    granted: ClaimGranted[Member]

    def send(self, given: GivenSession) -> None:
        """What the grant says is on disk."""
        self.registry.send_grant(self.granted, given)

    def refuse(self, refused: Refused) -> None:
        """The claim is rejected after all."""
        self.registry.take_back(self.granted.node, self.granted.claim, refused)
