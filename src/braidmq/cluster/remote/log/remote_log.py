"""The log as a node without a database sees it: what is recorded travels to the home in blocks, what is read comes in scans.

Everything that a turn has collected becomes one block per shard. The home answers a block when it is on disk and all subscribers
were offered its messages. Then messages are acknowledged, and callers hear of their rows; a caller whose rows are in several
shards hears once.

Each shard has its core, and is at home there: the blocks of a shard go to its core alone. While a core is away, its publishers
wait for ``home_wait_s``; then what was never sent is rejected, and what was sent is in doubt: the publisher's connection is
closed, and the block is sent again when the home is back (C19). Rows that no client waits for are kept, and so are releases. The
shards of other cores go on.

Messages of a channel and the rows that belong to them are in one block, which the home writes as one (S1), even if a row's own
home is another shard (`block_split`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Final

import msgspec

from braidmq.base.shards import shard_of
from braidmq.base.start_position import Start
from braidmq.broker.connection.presence_events import PresenceEvent
from braidmq.broker.persistence import no_callback
from braidmq.broker.ports import Change, LogScan, Refusal
from braidmq.cluster.protocol import operations
from braidmq.cluster.protocol.blocks import (
    FENCED,
    NOT_RECORDED,
    RECORDED,
    BlockAnswer,
    Outcomes,
    is_all_done,
    is_refused_whole,
    outcome_of,
)
from braidmq.cluster.remote.guests import GuestNotices
from braidmq.cluster.remote.log.block_split import BlockSplit, channel_of
from braidmq.cluster.remote.log.core_blocks import CoreBlocks
from braidmq.cluster.remote.log.entries import (
    OVERTAKEN,
    CollectedEvent,
    CollectedGuest,
    CollectedMessages,
    CollectedNotice,
    CollectedRows,
    EntriesWaiter,
    HomeRefusal,
    lazy_key,
    refusal_of,
)
from braidmq.cluster.remote.log.log_marks import LogMarks
from braidmq.cluster.remote.log.log_ports import Later, NodeBlock, NodeChannels, NodeOutcomes, NodeScans
from braidmq.cluster.remote.log.rows import NodeChange
from braidmq.cluster.remote.log.shard_blocks import ShardBlocks
from braidmq.lane.recording.commit_outcomes import Pending
from braidmq.net.frames import BadFrame
from braidmq.net.proto_v1 import AnswerBody, Marks, ReleaseEntry, WithdrawEntry
from braidmq.storage.fences import FenceTable
from braidmq.storage.reading.positions import positions_at
from braidmq.storage.reading.reader import RetentionGap

BYTES_MAX: Final = 64 * 1024 * 1024
_RETRY_S: Final = 0.4  # after which rows that the home could not store are sent again
_answers: Final = msgspec.msgpack.Decoder(AnswerBody)


class RemoteLog:
    """Implements `broker.ports.MessageLog` on a node whose log is elsewhere. Runs on the event loop.

    The owner of the connections calls ``on_answer`` and ``on_marks`` for what a core says, and ``connected`` and ``lost`` of its
    blocks. ``connected`` comes when the home may be sent blocks: after the declaration, if the home has restarted.
    """

    def __init__(
        self,
        cores: Sequence[CoreBlocks],
        scans: NodeScans,
        channels: NodeChannels,
        later: Later,
        *,
        on_fenced: Callable[[int], None],
        now: Callable[[], float] = monotonic,
    ) -> None:
        """``cores``: one of them has each shard.

        ``on_fenced(channel)``: another connection owns the client id of this channel, whose connection must be closed.
        """
        self.fences = FenceTable()
        self.outcomes: NodeOutcomes  # set before anything is recorded
        self.collect: Callable[[], None] = no_callback  # hands over what the recorder has collected in this turn so far
        self.ask_flush: Callable[[], None] = no_callback  # requests ``flush`` at the end of this turn
        self.on_stalled: Callable[[frozenset[int]], None] = _ignore  # publishers of these shards should wait, all others not
        self.lost_fenced = 0  # entries that the home refused because their channels were fenced
        self._cores = cores
        self._core_of = {shard: core for core in cores for shard in core.shards}
        self._shards = [self._core_of[shard].shards[shard] for shard in range(len(self._core_of))]
        self._scans = scans
        self._channels = channels
        self._later = later
        self._on_fenced = on_fenced
        self._may_hold = False  # publishers were told to wait since they were last told to continue
        self._stalled: frozenset[int] = frozenset()
        self._relieve: Callable[[], None] = no_callback
        self._marks = LogMarks(len(self._shards), now)
        self._has_guests = len(cores) > 1
        self.guests = GuestNotices(cores, channels, later, lambda: self.ask_flush())
        for core in cores:
            core.on_change = self._note_relief

    def close(self) -> None:
        """The node stops."""
        for core in self._cores:
            core.close()

    # Recording

    def append_block(self, block: NodeBlock) -> None:
        """Record a turn's block with the next flush."""
        refusals = {core: core.refusal for core in self._cores}
        if all(refusals.values()):
            refusal = next(iter(refusals.values()))
            assert refusal is not None
            block.refused(refusal)
            return
        refused = {shard: refusal for core, refusal in refusals.items() if refusal is not None for shard in core.shards}
        split = BlockSplit(block, refused, self._channels, self.outcomes, self._refuse_pendings, self.shard_of)
        for (shard, _), entries in split.groups.items():
            self._shards[shard].add(entries)
        for change in split.own:
            if change.shard not in refused:
                self._shards[change.shard].add((_rows(0, [change.operation], None),))
        self._note_growth()

    def _refuse_pendings(self, pendings: list[Pending], refusal: Refusal) -> None:
        self.outcomes.refuse(pendings, refusal.is_in_doubt)

    def change(self, changes: Iterable[Change], *, on_commit: Callable[[], None], on_refused: Callable[[Refusal], None]) -> None:
        """Write rows by the next flush; then one of the two is called. Rows that no client waits for may take longer."""
        is_awaited = on_commit is not no_callback
        listed = [change for change in changes if isinstance(change, NodeChange)]
        guests = [change for change in listed if operations.is_of_guest(change.operation)] if self._has_guests else []
        if not guests:
            self._write(listed, is_awaited, on_commit, on_refused)
            return
        listed = [change for change in listed if not operations.is_of_guest(change.operation)]
        if not is_awaited:
            self.guests.tell(guests)
            if listed:
                self._write(listed, is_awaited, on_commit, on_refused)
            return
        channels = [channel_of(change, self._channels) for change in listed]

        def on_told() -> None:
            if [channel_of(change, self._channels) for change in listed] == channels:
                self._write(listed, is_awaited, on_commit, on_refused)
                self.ask_flush()
            else:
                on_refused(OVERTAKEN)

        # Else a core may hear of a group by its durable route first, and not start it where the client asks.
        self.guests.tell_before(guests, on_told, on_refused)

    def _write(
        self,
        listed: list[NodeChange],
        is_awaited: bool,
        on_commit: Callable[[], None],
        on_refused: Callable[[Refusal], None],
    ) -> None:
        lazy = [] if is_awaited else [lazy_key(change.operation) for change in listed]
        is_lazy = bool(lazy) and None not in lazy
        cores = {self._core_of[change.shard]: None for change in listed} or {self._any_core(): None}
        refusal = None if is_lazy else self._refusal(cores, is_awaited)
        if refusal is not None:
            on_refused(refusal)
            return
        runs = [[change] for change in listed] if is_lazy else self._runs(listed)
        waiter = EntriesWaiter(len(runs) or 1, on_commit, on_refused, is_awaited)
        for index, run in enumerate(runs):
            channel, shard = channel_of(run[0], self._channels), run[0].shard
            entry = _rows(channel, [change.operation for change in run], waiter)
            if is_lazy:
                self._shards[shard].add_lazy((channel, lazy[index]), entry)
            else:
                self._shards[shard].add((entry,))
        if not runs:
            next(iter(self._any_core().shards.values())).add((_rows(0, [], waiter),))
        self._note_growth()

    def _refusal(self, cores: Iterable[CoreBlocks], is_awaited: bool) -> HomeRefusal | None:
        """Why these cores are told nothing more; None: they are."""
        for core in cores:
            refusal = core.refusal if is_awaited else core.full
            if refusal is not None:
                return refusal
        return None

    def _any_core(self) -> CoreBlocks:
        """A core for what is about no shard: one that answers, if there is one."""
        return next((core for core in self._cores if core.is_connected), self._cores[0])

    def _runs(self, changes: Iterable[NodeChange]) -> list[list[NodeChange]]:
        """Changes of one channel and shard that follow each other, together."""
        runs: list[list[NodeChange]] = []
        for change in changes:
            if runs and (change.shard, change.client_id) == (runs[-1][0].shard, runs[-1][0].client_id):
                runs[-1].append(change)
            else:
                runs.append([change])
        return runs

    def add_entry(self, shard: int, entry: ReleaseEntry | WithdrawEntry, on_answer: Callable[[], None]) -> None:
        """Tell the home of a channel's end, behind everything that its client has sent; it is sent until it is answered."""
        self.collect()
        self._shards[shard].add((CollectedNotice(entry, on_answer),))
        self.ask_flush()

    # The broker's ``PresenceHome``

    def wants_presence(self, client_id: str) -> bool:
        """Whether the home of a client id has hooks for its events."""
        return self._core_of[self.shard_of(client_id)].wants_presence

    def tell_presence(self, event: PresenceEvent) -> None:
        """A client of this node has connected or disconnected: its home is told until it has answered (R20)."""
        self.collect()
        self._shards[self.shard_of(event.client_id)].add((CollectedEvent(event),))
        self.ask_flush()

    def tell(self, core: CoreBlocks) -> bool:
        """Send what was collected for one of several cores; False if it is kept, so that the core does not know all members."""
        if not self._has_guests:
            return True
        core.flush_all()
        return not core.is_held and self.guests.has_told(core)

    def flush(self) -> None:
        """Send what was collected so far, or let it wait for more; see `core_blocks`."""
        for core in self._cores:
            core.flush()

    def flush_all(self) -> None:
        """Send everything collected so far: the node leaves."""
        for core in self._cores:
            core.flush_all()

    def size_of(self, changes: Iterable[Change]) -> int:
        """About how many bytes these changes take."""
        return operations.size_of(change.operation for change in changes if isinstance(change, NodeChange))

    # Answers

    def on_answer(self, core: CoreBlocks, shard: int, flags: int, body: bytes | memoryview) -> None:
        """The home has answered a block, or says whether publishers should wait. Raises BadFrame."""
        core.note_congestion(flags)
        if len(body):
            blocks = core.shards.get(shard)
            if blocks is None:
                raise BadFrame(f"an answer for shard {shard}, which the core does not lead")
            try:
                answer = _answers.decode(body)
            except msgspec.MsgspecError as problem:
                raise BadFrame(f"an answer cannot be read: {problem}") from None
            self._answer(blocks, BlockAnswer(answer.number, answer.outcomes))
            core.note_answer(shard, answer.number)
        core.note_relief()

    def _answer(self, blocks: ShardBlocks, answer: BlockAnswer) -> None:
        answered = blocks.on_answer(answer)
        if answered is None:
            return
        entries, outcomes = answered
        pendings: list[Pending] = []
        codes: list[int] = []
        fenced: dict[int, None] = {}
        overtaken: list[Pending] = []
        if is_all_done(outcomes):  # nearly always
            messages = [entry for entry in entries if isinstance(entry, CollectedMessages)]
            if len(messages) == len(entries):
                for each in messages:
                    pendings += each.pendings or ()  # else they were in doubt
                self._acknowledge(pendings, [0] * len(pendings))
                entries = ()
        next_index = 0
        for entry in entries:
            index = next_index
            if isinstance(entry, CollectedMessages):
                next_index += entry.count
                for place, pending in enumerate(entry.pendings or (None,) * entry.count):
                    outcome = outcome_of(outcomes, index + place)
                    if outcome == FENCED:
                        fenced[entry.channel] = None
                        self.lost_fenced += 1
                        overtaken += [] if pending is None else [pending]
                    elif pending is not None:  # else it was in doubt
                        pendings.append(pending)
                        codes.append(0 if outcome in (RECORDED, NOT_RECORDED) else outcome)
                continue
            next_index += 1
            outcome = outcome_of(outcomes, index)
            if outcome == FENCED and isinstance(entry, CollectedRows):
                fenced[entry.channel] = None
                self.lost_fenced += 1
            if isinstance(entry, CollectedNotice):
                entry.answered()
            elif isinstance(entry, CollectedRows):
                refusal = refusal_of(outcome)
                if refusal is not None and not refusal.is_in_doubt and entry.is_kept and _is_sent_again(entry, outcomes):
                    blocks.put_back(answer.number, entry)
                elif entry.waiter is not None:
                    self._acknowledge(pendings, codes)  # in the order of the messages
                    entry.answered(refusal)
        self._acknowledge(pendings, codes)
        for channel in fenced:
            self._on_fenced(channel)
        self.outcomes.refuse(overtaken, OVERTAKEN.is_in_doubt)
        if blocks.is_drained and blocks.has_returned:
            self._later(_RETRY_S, blocks.restart)
        else:
            blocks.restart()

    def _acknowledge(self, pendings: list[Pending], codes: list[int]) -> None:
        if pendings:
            self.outcomes.answer(pendings[:], codes[:])
            pendings.clear()
            codes.clear()

    # Congestion

    @property
    def unanswered_bytes(self) -> int:
        """The bytes of everything that waits for a home."""
        return sum(core.size for core in self._cores)

    @property
    def is_congested(self) -> bool:
        """Whether all publishers should wait; ``on_stalled`` says it of those of single shards."""
        is_congested = all(core.is_congested for core in self._cores)
        self._may_hold = self._may_hold or is_congested
        return is_congested

    @property
    def has_commit(self) -> bool:
        """Never: answers come from connections, like everything else."""
        return False

    def on_relief(self, callback: Callable[[], None]) -> None:
        """Call this whenever publishers may continue."""
        self._relieve = callback

    def _note_growth(self) -> None:
        for core in self._cores:
            core.note_growth()

    def _note_relief(self) -> None:
        """A core has more or less room than before."""
        freed: frozenset[int] = frozenset()
        if len(self._cores) > 1:
            self.guests.go_on()
            stalled = frozenset(shard for core in self._cores if core.is_congested for shard in core.shards)
            if stalled != self._stalled:
                freed = self._stalled - stalled
                self._stalled = stalled
                self.on_stalled(stalled)
        if freed or (self._may_hold and not self.is_congested):  # all connections are looked at: not with every answer
            self._may_hold = False
            self._relieve()

    # Reading

    def on_marks(self, core: CoreBlocks, marks: Marks) -> None:
        """A core has announced how far the log is in its shards. Raises BadFrame."""
        self._marks.note(core, core.shards, marks)

    def assume(self, core: CoreBlocks, position: int) -> None:
        """Nothing is known of a core's shards: assume that their log ends here until it says so."""
        self._marks.assume(core.shards, position)

    @property
    def watermarks(self) -> dict[int, int]:
        """The last timestamp of each shard that its home has announced."""
        return dict(enumerate(self._marks.watermarks))

    def now(self) -> int:
        """The log's clock, in microseconds since 1970: the latest of the homes, not this machine's (C39)."""
        return self._marks.now()

    def shard_of(self, client_id: str) -> int:
        """The home of a client id."""
        return shard_of(client_id, len(self._shards))

    def positions_at(self, start: Start) -> dict[int, int]:
        """The positions of a start that a client has asked for."""
        return positions_at(start, self.watermarks, self.now())

    def gaps(self, start: Mapping[int, int] | int, filters: Sequence[str] = ("#",)) -> dict[int, RetentionGap]:
        """What retention has taken of what is later than these positions, as far as announced; scans report all of it."""
        return self._marks.gaps(start)

    def replay(self, filters: Sequence[str], start: Mapping[int, int] | int, *, with_session_only: bool = False) -> LogScan:
        """Read what matches one of the filters, later than the start, in order of time."""
        numbers = range(len(self._shards))
        positions = {shard: start if isinstance(start, int) else start[shard] for shard in numbers}
        return self._scans.open(filters, positions, with_session_only)


def _is_sent_again(entry: CollectedRows, outcomes: Outcomes) -> bool:
    return not isinstance(entry, CollectedGuest) or is_refused_whole(outcomes)


def _rows(channel: int, found: list[operations.Operation], waiter: EntriesWaiter | None) -> CollectedRows:
    return CollectedRows(channel, found, operations.size_of(found), waiter)


def _ignore(shards: frozenset[int]) -> None:
    """Used until a listener is set."""
