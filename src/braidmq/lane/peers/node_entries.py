"""Messages that clients of other nodes have published, as their home takes them: the frequent case, without the pipeline.

A node sends each message as a record. Most are *plain*: they do not expire, are not retained, and their route has no flags. For
these the home reads the record and decides in one call each; all others take the way of `cluster.home.publishing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.recording.recorder import Recorder
from braidmq.lane.records.records import VALUE_BYTES_MAX, Record
from braidmq.lane.routing.routes import RouteTable

if TYPE_CHECKING:
    from braidmq.lane.flows.flow import Flow

# What `NodeEntries.record` has decided.
TAKEN = 1  # it is recorded, in the recorder's open block
LIVE = 2  # it need not be recorded: the caller shows it
LONG_WAY = 3  # nothing was done: it needs the pipeline
# What stands for packet ids with an `EntryWaiter`: the end of its block, and the first of its messages.
END = 1
FIRST = 2
# C constants in the compiled form.
_TAKEN, _LIVE, _LONG_WAY, _END, _FIRST, _VALUE_BYTES_MAX = TAKEN, LIVE, LONG_WAY, END, FIRST, VALUE_BYTES_MAX


def read_plain(value: bytes, client_id: str) -> Message | None:
    """The message of a record that this client has published; None if it expires, or is invalid in any way."""
    try:
        record = Record(0, value)
        if record.publisher != client_id:
            return None
        message = from_record(0, record)
        message.topic.decode()
    except (Corruption, UsageError, ValueError, OverflowError):
        return None
    if message.qos == 0 or record.expires_at:
        return None
    return message


class EntryWaiter(Outlet):
    """Waits for the messages of a node's block: stands where their publishers would.

    A message that is not written is shown with QoS 1, and the block waits for it. One that is written has QoS 0: the block's END
    comes behind it.
    """

    __slots__ = ("codes", "left")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}  # reason codes of messages that were accepted, by index; only those that are not 0
        self.left = 1  # what has to happen before the block is answered

    def settle(self, flow: Flow | None, qos: int, packet_id: int, code: int) -> None:
        """One of its messages was shown, or everything was."""
        if packet_id == _END:
            self.on_end()
            return
        if code:
            self.codes[packet_id - _FIRST] = code
        if qos:
            self.left -= 1
            if self.left == 0:
                self.on_ready()

    def on_end(self) -> None:
        """The block is committed and was shown up to its end."""
        raise NotImplementedError

    def on_ready(self) -> None:
        """Nothing is left to wait for."""
        raise NotImplementedError


class NodeEntries:
    """Decides what becomes of plain messages."""

    __slots__ = ("recorder", "routes")

    def __init__(self, recorder: Recorder, routes: RouteTable) -> None:
        self.recorder = recorder
        self.routes = routes

    def record(self, message: Message, value: bytes, shard: int, waiter: EntryWaiter, number: int) -> int:
        """Record a message if it is plain and has to be recorded; TAKEN, LIVE or LONG_WAY. ``value``: its record.

        The waiter is settled with this number when the message has been shown.
        """
        if message.retain:
            return _LONG_WAY
        route = self.routes.resolve(message.topic)
        if route is None or route.flags:
            return _LONG_WAY
        if message.qos < route.entry_qos:
            return _LIVE
        if len(value) > _VALUE_BYTES_MAX:
            return _LONG_WAY  # it is refused there
        self.recorder.record_value(message, value, shard, message.qos < route.record_qos, None, waiter, 0, number)
        return _TAKEN
