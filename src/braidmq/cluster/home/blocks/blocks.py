"""A core's side of one node's blocks: takes them in order, once each, and answers when everything in them is done.

    frame -> whole body -> `BlockReceiver`: new?  -- no --> the answer of the first time
                                | yes
             judge every entry, publish, apply rows --> the recorder's open block, with the mark's row --> releases
                                |
             (commit, shown) --> effects of rows --> (nodes have confirmed what was not recorded) --> answer

One block of a node is written as one: everything it leaves on disk is in one block of the core's own recorder, and so is what a
release writes at once. Answers come in any order. A release is obeyed even if its block is refused (C30).

A block that the engine refuses bars the following ones, which are refused unread until the node has heard of it: see
`remote.shard_blocks`. A commit that is in doubt is not answered: the core has to restart, and the node sends the block again.

The owner of the connection hands no block in before the node has declared its channels and the home is ready (C16), pauses
reading while ``is_full``, and closes the connection if a call raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from braidmq.base.errors import Unavailable
from braidmq.cluster.home.blocks.block_entries import Delay, JudgedBlock, Notice, judge, notice_of
from braidmq.cluster.home.blocks.block_ports import BlockRecorder, ChannelClient, HomePublisher, NodePort
from braidmq.cluster.home.blocks.operations import AppliedRows, Effect, RetainedSent
from braidmq.cluster.home.blocks.producer_entries import MarkedEntry, ProducerEntries, ProducerPort
from braidmq.cluster.home.blocks.publishing import NodeMessage, Published
from braidmq.cluster.home.blocks.repeats import RepeatedBlocks
from braidmq.cluster.protocol.blocks import (
    CONGESTED,
    FENCED,
    FRESH,
    NOT_RECORDED,
    RECORDED,
    STALE,
    BlockMark,
    BlockReceiver,
    BlockResume,
    BlockStep,
    NumberedBlock,
    Outcomes,
    is_refused_whole,
    shortened,
)
from braidmq.cluster.protocol.parts import BodyParts, Send
from braidmq.cluster.registry.messages import ClaimRequest, Ending
from braidmq.lane.flows.flow import Flow
from braidmq.lane.path.message import Message
from braidmq.lane.peers.node_entries import END, FIRST, EntryWaiter, NodeEntry
from braidmq.mqtt.reasons import Reason
from braidmq.net.frames import BadFrame, FrameKind
from braidmq.net.proto_v1 import (
    AnswerBody,
    BlockBody,
    BlockEntry,
    DelayEntry,
    PresenceEntry,
    PublishEntry,
    ReleaseEntry,
    RowsEntry,
    WithdrawEntry,
)

UNANSWERED_BYTES_MAX: Final = 16 * 1024 * 1024

_ENTRY_COST: Final = 200
_decoder: Final = msgspec.msgpack.Decoder(BlockBody)
_encode: Final = msgspec.msgpack.encode
_NO_MESSAGE: Final = Message(b"", b"", 0, False, "")


class NodeBlockWaiter(EntryWaiter):
    """Waits for one block."""

    # Without them each call of a method of the base class would search the instance for another one.
    __slots__ = ("_blocks", "delayed", "effects", "is_forwarded", "marked", "number", "outcomes", "shard", "size")

    def __init__(self, blocks: HomeBlocks, shard: int, number: int, size: int) -> None:
        super().__init__()
        self.shard = shard
        self.number = number
        self.size = size
        self.outcomes: dict[int, int] = {}
        self.effects: list[Effect] = []
        self.marked: list[MarkedEntry] = []
        self.delayed: list[Message] = []  # room was made for these
        self.is_forwarded = False  # something is shown that is not written
        self._blocks = blocks

    def on_end(self) -> None:
        """The block is committed and was shown up to its end."""
        self._blocks.conclude(self)
        self._blocks.end_part(self)

    def on_ready(self) -> None:
        """Nothing is left to wait for but other nodes."""
        self._blocks.end_parts(self)

    def refuse_publish(self, flow: Flow | None, qos: int, packet_id: int, is_in_doubt: bool) -> None:
        """The log has refused the block, or does not know what became of it."""
        if packet_id == END and not is_in_doubt:
            self._blocks.refuse(self)
            self._blocks.end_part(self)

    def end_large(self, size: int) -> None:
        """Nothing waits for that."""


class BlockPort(NodePort, ProducerPort, Protocol):
    """What the rest of the home does for the blocks of one node."""


class HomeBlocks:
    """The blocks of one incarnation of a node, over all its connections."""

    def __init__(
        self,
        shards: int,
        node: BlockPort,
        publisher: HomePublisher,
        recorder: BlockRecorder,
        marks: Mapping[int, BlockMark],
        *,
        on_room: Callable[[], None],
        may_take: Callable[[int], bool] | None = None,
        bytes_max: int = UNANSWERED_BYTES_MAX,
    ) -> None:
        """``marks``: the rows of this incarnation, by shard. ``on_room``: called when it is no longer full.

        ``may_take``: whether this core takes blocks of a shard, asked before each; None: of all.
        """
        self.unanswered_bytes = 0
        self.refused = 0  # blocks that could not be stored
        self.fenced = 0  # entries of channels that no longer own their client ids
        self._node = node
        self._publisher = publisher
        self._recorder = recorder
        self._on_room = on_room
        self._may_take = may_take
        self._bytes_max = bytes_max
        self._receivers: list[BlockReceiver[BlockEntry]] = [BlockReceiver(marks.get(shard)) for shard in range(shards)]
        self._repeats = RepeatedBlocks(node, publisher, marks)
        self._earlier = {shard: mark.number for shard, mark in marks.items()}  # blocks of before the home restarted
        self._barred = [False] * shards
        self._producers = ProducerEntries(node, recorder)
        self._parts = BodyParts()
        self._send: Send | None = None
        self._was_congested = False

    # The connection

    def connected(self, send: Send) -> None:
        """The node has connected, perhaps again; it begins with what is not answered."""
        self._send = send
        self._parts = BodyParts()
        self._was_congested = False

    def lost(self) -> None:
        """The connection is gone: answers are given when the node asks again."""
        self._send = None

    @property
    def is_full(self) -> bool:
        """Whether to read no more from the node for now."""
        return self.unanswered_bytes > self._bytes_max

    def note_relief(self) -> None:
        """The core's log is no longer congested."""
        if self._was_congested and self._send is not None and not self._node.is_congested():
            self._was_congested = False
            self._send(FrameKind.BLOCK_ANSWERS, 0, b"", 0)

    def on_frame(self, shard: int, flags: int, body: bytes | memoryview) -> None:
        """A frame of a block has arrived. Raises BraidError: the connection must be closed."""
        if not 0 <= shard < len(self._receivers):
            raise BadFrame(f"a block for shard {shard}, which does not exist")
        if self._may_take is not None and not self._may_take(shard):
            raise BadFrame(f"a block for shard {shard}, which another core leads")
        whole = self._parts.add(shard, flags, body)
        if whole is None:
            return
        try:
            block = _decoder.decode(whole)
        except msgspec.MsgspecError as problem:
            raise BadFrame(f"a block cannot be read: {problem}") from None
        receiver = self._receivers[shard]
        if block.next_number:
            receiver.on_resume(BlockResume(block.next_number))
        self._repeats.forget(shard, block.confirmed)
        judged = judge(block, self._node) if block.number > receiver.last else None
        match receiver.receive(NumberedBlock(block.number, block.confirmed, block.entries)):
            case BlockStep.WRITE:
                assert judged is not None  # it is new
                self._take(shard, flags, block, judged, len(whole))
            case BlockStep.ANSWER:
                self._repeat(shard, block)
            case BlockStep.WAIT:
                pass
        self._publisher.flush()

    # New blocks

    def _take(self, shard: int, flags: int, block: BlockBody, judged: JudgedBlock, size: int) -> None:
        waiter = NodeBlockWaiter(self, shard, block.number, size + len(block.entries) * _ENTRY_COST)
        self.unanswered_bytes += waiter.size
        self.fenced += len(judged.fenced)
        if flags & FRESH:
            self._barred[shard] = False
        if self._barred[shard] or flags & STALE:
            waiter.outcomes = dict.fromkeys(judged.fenced, FENCED)
            self._producers.note_refused(block.entries)
            self._refuse_state(waiter)
            self._obey(judged)
            self.end_part(waiter)
            return
        is_written = self._publish(shard, judged, waiter)
        for index, noted in judged.received.items():
            # A refused message may come again: with its id noted it would count as received then.
            if waiter.outcomes.get(index, RECORDED) in (RECORDED, NOT_RECORDED):
                self._keep(noted, waiter)
                is_written = True
        waiter.outcomes = shortened(waiter.outcomes, len(block.entries))
        for applied in judged.rows.values():
            self._keep(applied, waiter)
            is_written = True
        receiver = self._receivers[shard]
        if is_written or judged.notices:
            self._await_order(waiter, receiver.mark(block.number, waiter.outcomes))
            self._obey(judged)
        else:
            self._obey(judged)
            receiver.pass_on(block.number, waiter.outcomes)
            self.end_part(waiter)

    def _publish(self, shard: int, judged: JudgedBlock, waiter: NodeBlockWaiter) -> bool:
        """Publish the messages; whether anything is to be written."""
        waiter.outcomes.update(dict.fromkeys(judged.fenced, FENCED))
        waiter.outcomes.update(dict.fromkeys(judged.taken, int(Reason.QUOTA_EXCEEDED)))
        is_written = False
        messages = judged.messages
        place = -1
        while place + 1 < len(messages):
            place = self._publisher.publish_plain(messages, place + 1, shard, waiter)
            if place == len(messages):
                break
            sent = messages[place]
            index = sent.index
            if isinstance(sent.entry, RowsEntry):
                self._retain(judged.rows[index])
                continue
            if index in judged.delays:
                outcome = self._delay(shard, sent.entry, sent.client, judged.delays[index], waiter)
                if outcome == RECORDED:
                    is_written = True
                else:
                    waiter.outcomes[index] = outcome
                continue
            waiter.left += 1
            published = self._publish_one(shard, sent, waiter)
            if published.is_shown:
                waiter.is_forwarded = True
            elif not published.is_sent:
                waiter.left -= 1
            if published.outcome != RECORDED:
                waiter.outcomes[index] = published.outcome
            is_written = is_written or published.is_written
        if waiter.live:
            waiter.is_forwarded = True
            waiter.outcomes.update(dict.fromkeys(waiter.live, NOT_RECORDED))
        return is_written or waiter.is_written

    def _publish_one(self, shard: int, sent: NodeEntry, waiter: NodeBlockWaiter) -> Published:
        """Publish a message that is not plain."""
        entry: PublishEntry = sent.entry
        client: ChannelClient = sent.client
        message, number = NodeMessage(sent.message, sent.value), sent.index + FIRST
        numbered = entry.producer
        if numbered is None:
            return self._publisher.publish(message, shard, client.user_name, waiter, number)
        producers = self._producers
        outcome = producers.judge(shard, entry.channel, numbered, client)
        if outcome != RECORDED:
            self.fenced += outcome == FENCED
            return Published(outcome, False, False)
        find_key = producers.find_key(entry.channel, numbered)
        try:
            published = self._publisher.publish(message, shard, client.user_name, waiter, number, find_key)
        except Unavailable:
            published = Published(Reason.QUOTA_EXCEEDED, False, False)
        marked = producers.note(shard, entry.channel, numbered, published.outcome, published.is_written)
        if marked is not None:
            waiter.marked.append(marked)
        return published

    def _delay(
        self, shard: int, entry: PublishEntry | DelayEntry, client: ChannelClient, delay: Delay, waiter: NodeBlockWaiter
    ) -> int:
        """Keep a message until it is due, if there is room for it; the entry's outcome."""
        numbered, producers = entry.producer, self._producers
        outcome = RECORDED if numbered is None else producers.judge(shard, entry.channel, numbered, client)
        self.fenced += outcome == FENCED
        if outcome == RECORDED and not self._node.reserve(delay.message):
            outcome = Reason.QUOTA_EXCEEDED
        if outcome == RECORDED:
            waiter.delayed.append(delay.message)
            self._keep(delay.applied, waiter)
        marked = numbered and producers.note(shard, entry.channel, numbered, outcome, outcome == RECORDED)
        if marked:
            waiter.marked.append(marked)
        return outcome

    def _retain(self, applied: AppliedRows) -> None:
        for effect in applied.effects:
            if isinstance(effect, RetainedSent):
                self._publisher.retain(effect.stored.message, effect.stored.user_name)

    def _keep(self, applied: AppliedRows, waiter: NodeBlockWaiter) -> None:
        for change in applied.changes:
            self._recorder.change(change)
        waiter.effects += applied.effects

    def _await_order(self, waiter: NodeBlockWaiter, mark: BlockMark) -> None:
        """Wait until everything so far is committed and shown, and write the mark with it."""
        self._recorder.change(self._node.mark_row(waiter.shard, mark))
        pending = self._recorder.await_rows(_NO_MESSAGE, None, waiter, 1, END)
        pending.is_delivered = False

    # What became of them

    def conclude(self, waiter: NodeBlockWaiter) -> None:
        """Everything of the block is committed and was shown."""
        self._producers.settle(waiter.marked)
        if waiter.effects:
            self._node.carry_out(waiter.effects)
            waiter.left += 1
            self._node.when_known(waiter.effects, lambda: self.end_part(waiter))

    def refuse(self, waiter: NodeBlockWaiter) -> None:
        """The engine has refused the block: nothing of it is on disk."""
        self._producers.settle(waiter.marked, is_refused=True)
        for message in waiter.delayed:
            self._node.give_back(message)
        self._refuse_state(waiter)

    def _refuse_state(self, waiter: NodeBlockWaiter) -> None:
        """Note the refusal in the turn of the write; the answer follows."""
        self.refused += 1
        self._barred[waiter.shard] = True
        self._receivers[waiter.shard].refused(waiter.number, Reason.QUOTA_EXCEEDED, waiter.outcomes)

    def _obey(self, judged: JudgedBlock) -> None:
        for notice in judged.notices:
            self._obey_notice(notice)
        for entry in judged.presence:  # before what follows from the releases, which is carried out after this callback
            self._node.tell_presence(entry)

    def _obey_notice(self, notice: Notice) -> None:
        if isinstance(notice, ClaimRequest):
            self._node.withdraw(notice)
        else:
            self._producers.forget(notice[0])
            self._node.release(*notice)

    def end_part(self, waiter: NodeBlockWaiter) -> None:
        """One of the things that the answer waits for has happened."""
        waiter.left -= 1
        if not waiter.left:
            self.end_parts(waiter)

    def end_parts(self, waiter: NodeBlockWaiter) -> None:
        """All of them have happened."""
        if waiter.is_forwarded:
            self._node.when_forwarded(lambda: self._finish(waiter))
        else:
            self._finish(waiter)

    def _finish(self, waiter: NodeBlockWaiter) -> None:
        outcomes = self._receivers[waiter.shard].done(waiter.number).outcomes
        if waiter.codes and not is_refused_whole(outcomes):
            outcomes = {**outcomes, **waiter.codes}
        self._answer(waiter.shard, waiter.number, outcomes)
        was_full = self.is_full
        self.unanswered_bytes -= waiter.size
        if was_full and not self.is_full:
            self._on_room()

    def _answer(self, shard: int, number: int, outcomes: Outcomes) -> None:
        if self._send is None:
            return
        self._was_congested = self._node.is_congested()
        flags = CONGESTED if self._was_congested else 0
        self._send(FrameKind.BLOCK_ANSWERS, shard, _encode(AnswerBody(number, dict(outcomes))), flags)

    def _repeat(self, shard: int, block: BlockBody) -> None:
        """The node has sent a block again: give it the answer of the first time."""
        for entry in block.entries:
            if isinstance(entry, ReleaseEntry):
                self._node.release(entry.channel, Ending.REPEATED)
            elif isinstance(entry, WithdrawEntry):
                self._obey_notice(notice_of(entry))
            elif isinstance(entry, PresenceEntry) and block.number <= self._earlier.get(shard, 0):
                self._node.tell_presence(entry)  # it may not have been sent before the home restarted
        receiver = self._receivers[shard]
        outcomes = receiver.answer(block.number).outcomes
        self._producers.note_refused(block.entries, outcomes)

        def answer() -> None:
            self._answer(shard, block.number, receiver.answer(block.number).outcomes)

        # What the homes of topics were still to be given is settled first, as it was for the first answer (C14).
        self._repeats.show(shard, block, outcomes, lambda: self._node.when_retained(shard, answer))
