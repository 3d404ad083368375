"""The messages between the node and its history service, over a private socket.

    node                                    service
    Setup                          ->
                                   <-       Listening | CannotListen
    Answer(number, ...)            <->      Question(number, ...)       any number at a time
                                   <-       Served                      from time to time
    AskBacklogs(number, ...)       ->       Backlogs(number, ...)       one at a time
    AskOwn(number, ...)            ->       Own(number, ...)            any number at a time, for other cores
    (end of the stream)            ->       exits

Each message is msgpack, preceded by its length in four bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from braidmq.base.errors import Corruption

LENGTH_BYTES: Final = 4
# Far above the size of any real message: a longer one is corrupt.
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
# Questions contain input from readers, and the node answers them on its event loop.
QUESTION_BYTES_MAX: Final = 128 * 1024


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base class of messages and their parts."""


class Limits(_Message, frozen=True):
    """The limits of one reader: concurrent streams, and bytes per second (0: unlimited)."""

    streams_max: int
    bytes_per_s_max: int


class Tls(_Message, frozen=True):
    """Certificates and key as PEM text. The node has validated them; the files may change before the service restarts."""

    certificate: bytes
    key: bytes
    authorities: bytes

    def __repr__(self) -> str:
        return f"Tls(with authorities={bool(self.authorities)})"


class Cluster(_Message, frozen=True):
    """Several cores: this one, the shards that each leads, and where readers reach this service (port 0: its own)."""

    core: str
    cores: dict[str, list[int]]
    host: str
    port: int


class Setup(_Message, frozen=True):
    """The configuration of the service. Not passed on the command line, where other users could read it."""

    log_dir: str
    scratch_dir: str
    host: str
    port: int
    limits: Limits
    tls: Tls | None
    log_level: str
    log_format: str
    log_lines_per_s_max: int
    cluster: Cluster | None = None


class Listening(_Message, frozen=True):
    """The service is listening on this port."""

    port: int


class CannotListen(_Message, frozen=True):
    """The service cannot listen, and exits."""

    detail: str


class Served(_Message, frozen=True):
    """Rows and bytes sent since the start, open streams, and rejected streams and connections."""

    rows: int
    size_bytes: int
    streams: int
    refused: int = 0
    connections_refused: int = 0


class AskWatermarks(_Message, frozen=True):
    """Ask for the watermark of each shard. Answered with `Watermarks`."""


class Authenticate(_Message, frozen=True):
    """Authenticate a user and password, a token, or an anonymous reader. Answered with `ReaderGranted` or `Denied`."""

    reader: str
    peer_host: str
    user_name: str | None = None
    password: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"Authenticate(reader={self.reader!r}, peer_host={self.peer_host!r}, user_name={self.user_name!r})"


class MayRead(_Message, frozen=True):
    """Ask whether a reader still has access, and which filters it may not read. Answered with `Filters` or `Denied`."""

    reader: str
    peer_host: str
    user_name: str | None
    filters: list[str]


class SaveReader(_Message, frozen=True, tag="NoteReader"):
    """Store the positions and filters of a user's named reader. Answered with `Noted` or `Denied`."""

    name: str
    user_name: str | None
    positions: dict[int, int]
    filters: list[str] = []


class Watermarks(_Message, frozen=True):
    """The last committed timestamp of each shard, and whether the node is busy."""

    positions: dict[int, int]
    is_busy: bool = False


class AskCore(_Message, frozen=True):
    """Ask the service of another core about its shards (`view.core_requests`). Answered with `CoreTold` or `CoreAway`."""

    core: str
    request: bytes


class ReaderGranted(_Message, frozen=True, tag="Granted"):
    """The reader is accepted under this name; `token` can replace the password for a while."""

    user_name: str | None
    token: str = ""

    def __repr__(self) -> str:
        return f"ReaderGranted(user_name={self.user_name!r})"


class Denied(_Message, frozen=True):
    """The request is denied, with the reason."""

    detail: str


class Filters(_Message, frozen=True):
    """The filters that the reader may not subscribe to."""

    refused: list[str]


class Noted(_Message, frozen=True):
    """The named reader is stored on disk."""


class CoreTold(_Message, frozen=True):
    """The answer of another core's service."""

    answer: bytes


class CoreAway(_Message, frozen=True):
    """Another core does not answer, with its name and the reason."""

    detail: str


AnyQuestion = AskWatermarks | Authenticate | MayRead | SaveReader | AskCore
AnyAnswer = Watermarks | ReaderGranted | Denied | Filters | Noted | CoreTold | CoreAway


class Question(_Message, frozen=True):
    """A question; its answer carries the same number."""

    number: int
    question: AnyQuestion


class Answer(_Message, frozen=True):
    """The answer to the question with this number."""

    number: int
    answer: AnyAnswer


class ReaderAt(_Message, frozen=True):
    """The filters and positions of a named reader."""

    filters: list[str]
    positions: dict[int, int]


class AskBacklogs(_Message, frozen=True):
    """Ask how many records each of these readers has yet to read. Sent by the node; answered with `Backlogs`."""

    number: int
    readers: list[ReaderAt]


class Behind(_Message, frozen=True):
    """A number of records, exact or estimated."""

    records: int
    is_estimate: bool


class Backlogs(_Message, frozen=True):
    """One result per reader, in the order of the question; empty if the service could not count."""

    number: int
    found: list[Behind]


class AskOwn(_Message, frozen=True):
    """Another core asks about the shards that this one leads (`view.core_requests`). Sent by the node; answered with `Own`."""

    number: int
    request: bytes


class Own(_Message, frozen=True):
    """The answer to another core, with the number of its question."""

    number: int
    answer: bytes


FromService = Listening | CannotListen | Served | Question | Backlogs | Own
FromNode = Setup | Answer | AskBacklogs | AskOwn

_encoder: Final = msgspec.msgpack.Encoder()
_from_service: Final[msgspec.msgpack.Decoder[FromService]] = msgspec.msgpack.Decoder(FromService)
_from_node: Final[msgspec.msgpack.Decoder[FromNode]] = msgspec.msgpack.Decoder(FromNode)


def frame(message: FromService | FromNode) -> bytes:
    """Encode a message, with its length in front."""
    data = _encoder.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def length_of(head: bytes) -> int:
    """The message length in these first bytes; raises Corruption if it is invalid."""
    length = int.from_bytes(head, "big")
    if length > MESSAGE_BYTES_MAX:
        raise Corruption(f"a message between the node and the history service claims {length} bytes")
    return length


def from_service(data: bytes) -> FromService:
    """Decode a message from the service; raises Corruption if it is invalid."""
    try:
        return _from_service.decode(data)
    except msgspec.MsgspecError as problem:
        raise Corruption(f"the history service sent an invalid message: {problem}") from None


def from_node(data: bytes) -> FromNode:
    """Decode a message from the node; raises Corruption if it is invalid."""
    try:
        return _from_node.decode(data)
    except msgspec.MsgspecError as problem:
        raise Corruption(f"the node sent an invalid message: {problem}") from None
