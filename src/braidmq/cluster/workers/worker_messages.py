"""What a core and a worker say to each other over the worker's standard input, which is a socket.

The setup includes secrets. It travels only here: arguments and environment variables of a process can be read by others.
"""

from __future__ import annotations

from typing import Final

import msgspec

from braidmq.base.errors import Corruption

LENGTH_BYTES: Final = 4
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024


class _WorkerMessage(msgspec.Struct, frozen=True, tag=True):
    """One message."""


class WorkerSetup(_WorkerMessage, frozen=True):
    """The first message to a worker. ``config``: from `encode_config`. ``core_socket``: where the core accepts nodes."""

    parent_pid: int
    config: bytes
    core_socket: str
    secret: bytes


class WorkerReload(_WorkerMessage, frozen=True):
    """The configuration has changed, or the files that it names."""

    config: bytes


class WorkerReady(_WorkerMessage, frozen=True):
    """The worker has started."""


class WorkerFailed(_WorkerMessage, frozen=True):
    """The worker cannot start: its configuration is invalid on this machine."""

    key: str
    detail: str
    hint: str


ToWorker = WorkerSetup | WorkerReload
FromWorker = WorkerReady | WorkerFailed

_to_worker: Final[msgspec.msgpack.Decoder[ToWorker]] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: Final[msgspec.msgpack.Decoder[FromWorker]] = msgspec.msgpack.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker) -> bytes:
    """A message with its length."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def length_of(head: bytes) -> int:
    """The length of the message that follows; raises Corruption."""
    length = int.from_bytes(head, "big")
    if length > MESSAGE_BYTES_MAX:
        raise Corruption(f"a message of {length} bytes between a core and its worker")
    return length


def to_worker(data: bytes) -> ToWorker:
    """Decode a message of the core; raises Corruption."""
    try:
        return _to_worker.decode(data)
    except msgspec.DecodeError as problem:
        raise Corruption(f"a message of the core is not valid: {problem}") from None


def from_worker(data: bytes) -> FromWorker:
    """Decode a message of a worker; raises Corruption."""
    try:
        return _from_worker.decode(data)
    except msgspec.DecodeError as problem:
        raise Corruption(f"a message of a worker is not valid: {problem}") from None
