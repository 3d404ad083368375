"""Messages that clients of other nodes have published, as their home takes them: the frequent case, without the pipeline.

A node sends each message as a record. Most are *plain*: no producer has numbered them, they do not expire, are not retained, and
their route has no flags. The home reads those of a block that follow each other in one call, and publishes them in another one;
all others take the way of `cluster.home.publishing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braidmq.base.errors import Corruption, UsageError
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.path.outlet import Outlet
from braidmq.lane.recording.recorder import Recorder
from braidmq.lane.records.records import VALUE_BYTES_MAX, Record
from braidmq.lane.routing.routes import RouteTable

if TYPE_CHECKING:
    from braidmq.lane.flows.flow import Flow

# What stands for packet ids with an `EntryWaiter`: the end of its block, and the first of its messages.
END = 1
FIRST = 2
# C constants in the compiled form.
_END, _FIRST, _VALUE_BYTES_MAX = END, FIRST, VALUE_BYTES_MAX


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


class NodeEntry:
    """A message in a node's block: its place among the entries, what the node has sent, and who has published it."""

    __slots__ = ("client", "entry", "index", "is_plain", "message", "value")

    def __init__(self, index: int, entry: Any, message: Message, value: bytes, client: Any, is_plain: bool) -> None:
        """``value``: the record; empty if the message is kept in another form. ``is_plain``: as far as its route is concerned."""
        self.index = index
        self.entry = entry
        self.message = message
        self.value = value
        self.client = client
        self.is_plain = is_plain


def read_run(entries: list[Any], start: int, kind: Any, clients: dict[int, Any], found: list[NodeEntry]) -> int:
    """Read plain messages, from this index up to an entry that is something else, whose index is returned.

    ``kind``: the type of entries that are messages. ``clients``: by channel, those that are known so far.
    """
    count = len(entries)
    index = start
    last = -1
    client = None
    client_id = ""
    while index < count:
        entry = entries[index]
        if type(entry) is not kind or entry.producer is not None or entry.received:
            break
        channel: int = entry.channel
        if channel != last:
            client = clients.get(channel)
            if client is None:
                break
            last = channel
            client_id = client.client_id
        value: bytes = entry.value
        message = read_plain(value, client_id)
        if message is None:
            break
        found.append(NodeEntry(index, entry, message, value, client, True))
        index += 1
    return index


class EntryWaiter(Outlet):
    """Waits for the messages of a node's block: stands where their publishers would.

    A message that is not written is shown with QoS 1, and the block waits for it. One that is written has QoS 0: the block's END
    comes behind it.
    """

    __slots__ = ("codes", "is_written", "left", "live")

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}  # reason codes of messages that were accepted, by index; only those that are not 0
        self.left = 1  # what has to happen before the block is answered
        self.live: list[int] = []  # indexes of plain messages that are not recorded
        self.is_written = False  # a plain message is recorded, in the recorder's open block

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
    """Publishes plain messages."""

    __slots__ = ("recorder", "routes")

    def __init__(self, recorder: Recorder, routes: RouteTable) -> None:
        self.recorder = recorder
        self.routes = routes

    def publish(self, messages: list[NodeEntry], start: int, shard: int, waiter: EntryWaiter) -> int:
        """Record or show messages, from this place up to one that needs the pipeline, whose place is returned.

        The waiter is settled with ``FIRST`` plus the index of each when it has been shown; ``Lane.flush`` must follow.
        """
        outcomes = self.recorder.outcomes
        live = waiter.live
        count = len(messages)
        place = start
        is_shown = False
        while place < count:
            sent = messages[place]
            message = sent.message
            if not sent.is_plain or message.retain:
                break
            route = self.routes.resolve(message.topic)
            if route is None or route.flags:
                break
            if message.qos < route.entry_qos:
                live.append(sent.index)
                waiter.left += 1  # it may be shown within the call
                outcomes.show_entry(message, sent.value, waiter, sent.index + _FIRST)
                is_shown = True
            else:
                if len(sent.value) > _VALUE_BYTES_MAX:
                    break  # it is refused there
                session_only = message.qos < route.record_qos
                self.recorder.record_value(message, sent.value, shard, session_only, None, waiter, 0, sent.index + _FIRST)
                waiter.is_written = True
            place += 1
        if is_shown:
            outcomes.end_records()
        return place
