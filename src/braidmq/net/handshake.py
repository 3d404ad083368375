"""How two nodes find out that they belong together, as a state machine without I/O.

    connecting node                              accepting node
    HELLO Hello(nonce a, ...)           ->
                                        <-       HELLO Hello(nonce b, ...), HELLO Proof("accept", a, b)
    HELLO Proof("connect", a, b)        ->
                                        <-       HELLO Welcome, or HelloRefusal from whichever side finds a reason

Each side proves that it knows the cluster's secret by an HMAC over both hellos, which include a fresh nonce of each side. The
secret itself never travels, a proof is of no use on another connection, and since it names its side it cannot be sent back to
where it came from. Before the proof a peer may send only small frames, and nothing it says is acted on.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Literal

import msgspec

from braidmq.base.errors import BraidError
from braidmq.net.frames import Frame, FrameKind, encode
from braidmq.net.proto_v1 import VERSION, Hello, HelloRefusal, Proof, Welcome

HELLO_FRAME_BYTES_MAX: Final = 4096
NONCE_BYTES: Final = 32

_decoder: Final = msgspec.msgpack.Decoder(Hello | Proof | Welcome | HelloRefusal)
_encode: Final = msgspec.msgpack.encode


Refusal = Literal["protocol", "cluster", "version", "secret", "unwelcome", "refused"]
_REASON_CHARS_MAX: Final = 200  # of what a stranger says, in a log line and in a frame


class NotAccepted(BraidError):
    """The two nodes do not belong together. ``kind``: for counters; ``refused`` if the peer has found the reason."""

    def __init__(self, kind: Refusal, reason: str) -> None:
        self.kind: Refusal = kind
        self.reason = reason[:_REASON_CHARS_MAX]
        super().__init__(self.reason)

    @property
    def is_ours(self) -> bool:
        """This side has found the reason, and the peer is told."""
        return self.kind != "refused"


class Side(Enum):
    """Who has opened the connection."""

    CONNECT = b"connect"
    ACCEPT = b"accept"


class Handshake:
    """One side. Send what ``begin`` and ``receive`` return; ``peer`` is set when both sides have agreed."""

    def __init__(
        self, side: Side, hello: Hello, secret: bytes, check: Callable[[Hello], str | None], nonce: bytes | None = None
    ) -> None:
        """``check``: why a peer that knows the secret is not welcome all the same; None: it is. ``nonce``: for tests."""
        self.side = side
        self._secret = secret
        self._check = check
        self._mine = msgspec.structs.replace(hello, nonce=secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce)
        self._theirs: Hello | None = None
        self._is_proved = False
        self.peer: Hello | None = None

    @property
    def version(self) -> int:
        """The version that both sides speak; once there is a peer."""
        assert self._theirs is not None
        return min(self._mine.version_max, self._theirs.version_max)

    @property
    def purpose(self) -> str:
        """What the connecting node uses the connection for; once there is a peer."""
        hello = self._mine if self.side is Side.CONNECT else self._theirs
        assert hello is not None
        return hello.purpose

    def begin(self) -> bytes:
        """What the connecting node sends first."""
        assert self.side is Side.CONNECT
        return _frame(self._mine)

    def receive(self, frame: Frame) -> bytes:
        """Take a frame; the bytes to answer with. Raises NotAccepted: if it is ours, send ``refusal`` and close."""
        if frame.kind is not FrameKind.HELLO or self.peer is not None:
            raise NotAccepted("protocol", "the handshake was not finished")
        try:
            message = _decoder.decode(frame.body)
        except msgspec.MsgspecError:
            raise NotAccepted("protocol", "the peer does not speak this protocol") from None
        match message:
            case HelloRefusal():
                raise NotAccepted("refused", message.reason)
            case Hello() if self._theirs is None:
                return self._on_hello(message)
            case Proof() if self._theirs is not None and not self._is_proved:
                return self._on_proof(message, self._theirs)
            case Welcome() if self.side is Side.CONNECT and self._is_proved:
                self.peer = self._theirs
                return b""
        raise NotAccepted("protocol", "the steps of the handshake came out of order")

    def _on_hello(self, hello: Hello) -> bytes:
        if len(hello.nonce) != NONCE_BYTES or hello.nonce == self._mine.nonce:
            raise NotAccepted("protocol", "the peer sent an invalid nonce")
        if hello.cluster != self._mine.cluster:
            raise NotAccepted("cluster", f"it belongs to cluster {hello.cluster!r}, not {self._mine.cluster!r}")
        if hello.version_min > self._mine.version_max or hello.version_max < self._mine.version_min:
            raise NotAccepted(
                "version",
                f"it speaks versions {hello.version_min} to {hello.version_max} of the protocol between nodes, "
                f"this node {self._mine.version_min} to {self._mine.version_max}",
            )
        self._theirs = hello
        if self.side is Side.CONNECT:
            return b""  # the peer's proof is on its way; ours follows once it is right
        return _frame(self._mine) + _frame(Proof(self._proof_of(self.side)))

    def _on_proof(self, proof: Proof, theirs: Hello) -> bytes:
        other = Side.ACCEPT if self.side is Side.CONNECT else Side.CONNECT
        if not hmac.compare_digest(proof.digest, self._proof_of(other)):
            raise NotAccepted("secret", "the secrets differ: set the same cluster.secret on all nodes")
        self._is_proved = True
        reason = self._check(theirs)
        if reason is not None:
            raise NotAccepted("unwelcome", reason)
        if self.side is Side.CONNECT:
            return _frame(Proof(self._proof_of(self.side)))
        self.peer = theirs
        return _frame(Welcome())

    def _proof_of(self, side: Side) -> bytes:
        assert self._theirs is not None
        hellos = (self._mine, self._theirs) if self.side is Side.CONNECT else (self._theirs, self._mine)
        # Each part is encoded with its length, so that no two transcripts have the same bytes.
        transcript = _encode([side.value, *map(_encode, hellos)])
        return hmac.digest(self._secret, transcript, "sha256")


def refusal(reason: str) -> bytes:
    """What a peer is told that is not accepted."""
    return _frame(HelloRefusal(reason[:_REASON_CHARS_MAX]))


def hello(
    cluster: str, name: str, role: str, incarnation: int, purpose: str, shards: int, versions: Sequence[int] = (VERSION, VERSION)
) -> Hello:
    """The hello of this node, for all its handshakes."""
    return Hello(cluster, name, role, incarnation, purpose, shards, min(versions), max(versions))


def _frame(message: Hello | Proof | Welcome | HelloRefusal) -> bytes:
    return encode(FrameKind.HELLO, 0, _encode(message))
