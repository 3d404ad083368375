"""The entries of a node's block, read and checked before anything is done for any of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from braidmq.cluster.home.blocks.block_ports import ChannelClient, NodePort
from braidmq.cluster.home.blocks.operations import AppliedRows, DelayedAdded, NotFree, NotOwned, RetainedSent
from braidmq.cluster.home.blocks.publishing import NodeMessage, read_message
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.operations import BadOperation
from braidmq.cluster.registry.messages import ClaimRequest, Ending
from braidmq.lane.path.message import Message
from braidmq.lane.peers.node_entries import NodeEntry, read_plain, read_run
from braidmq.net.frames import BadFrame
from braidmq.net.proto_v1 import BlockBody, DelayEntry, PresenceEntry, PublishEntry, ReleaseEntry, RowsEntry, WithdrawEntry

_OF_CHANNELS: Final = (PublishEntry, RowsEntry, DelayEntry)

_NODE: Final = ChannelClient("", None)  # rows of no client

Notice = tuple[int, Ending] | ClaimRequest  # a release, or a withdrawal


class Delay(NamedTuple):
    """A message to be kept until it is due, and what keeps it."""

    message: Message
    applied: AppliedRows


class JudgedBlock(Struct, frozen=True):
    """A new block's entries, read and checked, before anything is done."""

    messages: list[NodeEntry]
    rows: dict[int, AppliedRows]
    fenced: list[int]
    notices: list[Notice]
    taken: list[int]  # what they ask for is another client's
    delays: dict[int, Delay]
    presence: list[PresenceEntry]
    received: dict[int, AppliedRows]  # rows of packet ids, which are noted unless their messages are refused


def judge(block: BlockBody, node: NodePort) -> JudgedBlock:
    """Read and check all entries of a new block; nothing was done if this raises. Raises BraidError."""
    judged = JudgedBlock([], {}, [], [], [], {}, [], {})
    clients: dict[int, ChannelClient | None] = {0: _NODE}  # of this block's channels
    entries, messages = block.entries, judged.messages
    count = len(entries)
    index = -1
    while index + 1 < count:
        index = read_run(entries, index + 1, PublishEntry, clients, messages)
        if index == count:
            break
        entry = entries[index]
        if isinstance(entry, PresenceEntry):
            judged.presence.append(entry)
            continue
        if not isinstance(entry, _OF_CHANNELS):
            judged.notices.append(notice_of(entry))
            continue
        channel = entry.channel
        if channel not in clients:
            clients[channel] = node.client_of(channel)
        client = clients[channel]
        if client is None:
            judged.fenced.append(index)
        elif isinstance(entry, PublishEntry):
            plain = read_plain(entry.value, client.client_id)
            sent = read_message(entry.value, client.client_id) if plain is None else NodeMessage(plain, entry.value)
            is_plain = plain is not None and entry.producer is None
            messages.append(NodeEntry(index, entry, sent.message, sent.value, client, is_plain))
            _judge_received(entry, index, client, node, judged)
        elif isinstance(entry, DelayEntry):
            try:
                delay = _delay(node.apply(operations.decode(entry.operation), client.client_id or None))
            except NotOwned:
                judged.fenced.append(index)
            else:
                judged.delays[index] = delay
                messages.append(NodeEntry(index, entry, delay.message, b"", client, False))
                _judge_received(entry, index, client, node, judged)
        else:
            try:
                applied = node.apply(operations.decode(entry.operations), client.client_id or None)
                if any(isinstance(effect, DelayedAdded) for effect in applied.effects):
                    raise BadOperation("a delayed message has no entry of its own")
                judged.rows[index] = applied
                retained = [effect.stored.message for effect in applied.effects if isinstance(effect, RetainedSent)]
                if retained:  # in the order of the client's messages
                    messages.append(NodeEntry(index, entry, retained[0], b"", client, False))
            except NotOwned:
                judged.fenced.append(index)
            except NotFree:
                judged.taken.append(index)
    return judged


def _judge_received(
    entry: PublishEntry | DelayEntry, index: int, client: ChannelClient, node: NodePort, judged: JudgedBlock
) -> None:
    if entry.received:
        noted = operations.PutReceived(client.client_id, entry.received)
        judged.received[index] = node.apply([noted], client.client_id)


def _delay(applied: AppliedRows) -> Delay:
    if len(applied.effects) != 1 or not isinstance(applied.effects[0], DelayedAdded):
        raise BadOperation("an entry for a delayed message has something else")
    return Delay(applied.effects[0].stored.message, applied)


def notice_of(entry: ReleaseEntry | WithdrawEntry) -> Notice:
    """What an entry asks for that the home obeys even if it refuses the block. Raises BadFrame."""
    if isinstance(entry, WithdrawEntry):
        return ClaimRequest(entry.number, entry.client_id, entry.channel)
    try:
        return entry.channel, Ending(entry.ending)
    except ValueError:
        raise BadFrame(f"a release with the unknown ending {entry.ending[:20]!r}") from None
