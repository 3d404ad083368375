"""Version 1 of what nodes and homes say about claims of client ids: on the connection for calls, in frames of kind CLAIMS.

The end of a fenced channel is repeated on the connection for messages. As in `proto_v1`, nothing here changes once a release
has it.
"""

from __future__ import annotations

import msgspec


class _ClaimsMessage(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """One message, or a part of one."""


class ProducerRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a client asks for as a producer; see `mqtt.producer_protocol.Request`."""

    base: int
    skip: tuple[int, int]
    stops: bool
    name: str
    is_keyed: bool
    part: int


class ProducerGrant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a producer begins: the name of its numbers, the last of them, and user properties for its CONNACK."""

    name: bytes
    sequence: int
    told: list[tuple[str, str]]


class VersionId(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The version of a channel (see `cluster.registry.versions`), and the error bound of its time, in milliseconds."""

    ms: int
    registration: int
    counter: int
    arrival: int
    bound_ms: int


class ClaimTimes(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When the connection of a claim was made, and the claim itself, by the cluster's clock; how certain that is; and the age of
    the connection when it claimed. All in milliseconds; 0: the node has no such clock.
    """

    ms: int = 0
    bound_ms: int = 0
    made_ms: int = 0
    age_ms: int = 0


class ClaimId(_ClaimsMessage, frozen=True):
    """A CONNECT claims a client id. ``will``: encoded by the cluster layer; empty if there is none.

    ``peer_host``: the client's address, which may be banned. ``term``: that of the registry that the node has declared to.
    """

    number: int
    client_id: str
    channel: int
    user_name: str | None
    clean_start: bool
    expiry_s: int
    will: bytes
    peer_host: str = ""
    producer: ProducerRequest | None = None
    times: ClaimTimes = ClaimTimes()
    term: int = 0


class GrantId(_ClaimsMessage, frozen=True):
    """A claim is granted. ``session``: the rows of the stored session, encoded by the cluster layer; empty if there is none.

    ``producer``: where a client that is a producer begins. ``replaces_user``: the grant has ended a session that belonged to a
    user. ``term``: that of the home's registry, as in all its messages about claims.
    """

    number: int
    guard: int
    version: VersionId
    term: int
    session: bytes
    producer: ProducerGrant | None
    replaces_user: bool = False


class RejectId(_ClaimsMessage, frozen=True):
    """A claim is rejected, with the reason code for CONNACK. ``told``: a producer's user properties; None: it is for others."""

    number: int
    reason: int
    detail: str
    term: int
    told: list[tuple[str, str]] | None = None


class ProbeId(_ClaimsMessage, frozen=True):
    """A home asks a node whether it is there, because a channel of it is about to lose its client id."""

    client_id: str
    channel: int
    term: int


class ProbedId(_ClaimsMessage, frozen=True):
    """The node is there, whether or not it has the channel."""

    client_id: str
    channel: int
    term: int


class EndId(_ClaimsMessage, frozen=True):
    """End the channels of a client id whose versions are lower; or, if ``kicked`` is not 0, this very channel."""

    client_id: str
    version: VersionId
    term: int
    kicked: int = 0


class SweepId(_ClaimsMessage, frozen=True):
    """A home asks a node for its channels whose client ids are at home there, numbered above ``first`` up to ``last``; 0: all."""

    first: int
    last: int
    term: int


class SweptId(_ClaimsMessage, frozen=True):
    """Channels of a node in this range. ``served``: granted and not over; ``others``: asked for, or not released yet."""

    first: int
    last: int
    served: list[int]
    others: list[int]


class RedeclareId(_ClaimsMessage, frozen=True):
    """A home does not know these channels, which the node serves: they have to be declared."""

    channels: list[int]
    term: int


class CloseChannel(_ClaimsMessage, frozen=True):
    """Close the connection of a channel, with this reason code."""

    channel: int
    reason: int
    detail: str


class DeclaredChannel(_ClaimsMessage, frozen=True):
    """A channel that was granted its client id, and what the home has to know of it."""

    client_id: str
    channel: int
    guard: int
    user_name: str | None
    expiry_s: int
    will: bytes
    version: VersionId
    times: ClaimTimes


class EndedChannel(_ClaimsMessage, frozen=True):
    """The highest channel of a client id that has ended on a node lately: older claims may still be under way."""

    client_id: str
    channel: int
    guard: int
    version: VersionId
    times: ClaimTimes


class Declare(_ClaimsMessage, frozen=True):
    """A call by which a node names its channels and unanswered claims to a home that it meets, and promises to accept nothing of
    an earlier term.

    ``claimed``: the number of its last claim.
    """

    channels: list[DeclaredChannel]
    claims: list[ClaimId]
    claimed: int
    ended: list[EndedChannel]
    term: int


class DeclarePart(_ClaimsMessage, frozen=True):
    """A part of a declaration that is too large for a frame; the call `Declare` follows the last one and has the rest."""

    channels: list[DeclaredChannel]
    claims: list[ClaimId]
    ended: list[EndedChannel]


class Declared(_ClaimsMessage, frozen=True):
    """The home has the declaration: it takes the node's blocks from now on.

    ``wants_presence``: it wants to hear of clients that connect and disconnect, even without a subscriber.
    """

    wants_presence: bool = False


class RedeclaredId(_ClaimsMessage, frozen=True):
    """These channels are served, and the home has asked for them."""

    channels: list[DeclaredChannel]


ClaimMessage = (
    ClaimId
    | GrantId
    | RejectId
    | ProbeId
    | ProbedId
    | EndId
    | SweepId
    | SweptId
    | RedeclareId
    | RedeclaredId
    | DeclarePart
    | CloseChannel
)
