"""Blocks from a node to a home, over lost connections, crashes of the home and refusals of its engine (S5, C18, C27)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from braidmq.cluster.protocol.blocks import (
    FENCED,
    NOT_RECORDED,
    RECORDED,
    BlockAnswer,
    BlockMark,
    BlockReceiver,
    BlockResume,
    BlockSender,
    BlocksOutOfOrder,
    BlockStep,
    NumberedBlock,
    UsedIncarnation,
    is_all_done,
    is_refused_whole,
    outcome_of,
    shortened,
)

QUOTA_EXCEEDED = 0x97


def test_a_block_is_kept_until_it_is_answered_and_confirmed_with_the_next_one() -> None:
    sender: BlockSender[str] = BlockSender()
    first, second = sender.add(["a"]), sender.add(["b"])

    assert sender.on_answer(BlockAnswer(1, {})) == (first, {})
    assert sender.on_answer(BlockAnswer(1, {})) is None
    assert list(sender.unanswered()) == [replace(second, confirmed=1)]
    assert sender.add(["c"]) == NumberedBlock(3, 1, ["c"])
    assert sender.resume() == BlockResume(4)


def test_answers_out_of_order_confirm_nothing_that_is_still_open() -> None:
    sender: BlockSender[str] = BlockSender()
    sender.add(["a"])
    sender.add(["b"])

    sender.on_answer(BlockAnswer(2, {}))

    assert sender.add(["c"]).confirmed == 0


def test_c18_a_block_that_was_refused_stays_refused_when_it_comes_again_after_a_crash() -> None:
    home: BlockReceiver[str] = BlockReceiver()
    home.receive(NumberedBlock(1, 0, ["lost"]))
    home.refused(1, QUOTA_EXCEEDED)
    home.receive(NumberedBlock(2, 0, ["kept"]))
    row = home.mark(2, {})

    again: BlockReceiver[str] = BlockReceiver(row)
    again.on_resume(BlockResume(3))

    assert again.receive(NumberedBlock(1, 0, ["lost"])) is BlockStep.ANSWER
    assert outcome_of(again.answer(1).outcomes, 0) == QUOTA_EXCEEDED
    assert again.receive(NumberedBlock(2, 0, ["kept"])) is BlockStep.ANSWER
    assert outcome_of(again.answer(2).outcomes, 0) == RECORDED


def test_c18_entries_that_were_refused_or_not_recorded_keep_their_outcome() -> None:
    home: BlockReceiver[str] = BlockReceiver()
    home.receive(NumberedBlock(1, 0, ["good", "full", "fenced", "live"]))
    row = home.mark(1, {1: QUOTA_EXCEEDED, 2: FENCED, 3: NOT_RECORDED})

    again: BlockReceiver[str] = BlockReceiver(row)
    again.on_resume(BlockResume(2))
    step = again.receive(NumberedBlock(1, 0, ["good", "full", "fenced", "live"]))

    assert step is BlockStep.ANSWER
    assert [outcome_of(again.answer(1).outcomes, index) for index in range(4)] == [RECORDED, QUOTA_EXCEEDED, FENCED, NOT_RECORDED]


def test_a_repeat_of_a_block_that_is_being_written_waits_for_it() -> None:
    home: BlockReceiver[str] = BlockReceiver()
    home.receive(NumberedBlock(1, 0, ["a"]))
    home.mark(1, {})

    home.on_resume(BlockResume(2))
    assert home.receive(NumberedBlock(1, 0, ["a"])) is BlockStep.WAIT
    home.done(1)

    assert home.receive(NumberedBlock(1, 0, ["a"])) is BlockStep.ANSWER


def test_confirmed_outcomes_leave_the_row() -> None:
    home: BlockReceiver[str] = BlockReceiver()
    home.receive(NumberedBlock(1, 0, ["a"]))
    home.mark(1, {0: FENCED})
    home.done(1)
    home.receive(NumberedBlock(2, 1, ["b"]))

    assert home.mark(2, {}) == BlockMark(2, {})


def test_a_block_that_left_no_row_is_new_again_after_a_crash() -> None:
    home: BlockReceiver[str] = BlockReceiver()
    home.receive(NumberedBlock(1, 0, ["live"]))
    home.pass_on(1, {0: NOT_RECORDED})
    assert home.done(1) == BlockAnswer(1, {0: NOT_RECORDED})

    again: BlockReceiver[str] = BlockReceiver()
    again.on_resume(BlockResume(2))

    assert again.receive(NumberedBlock(1, 0, ["live"])) is BlockStep.WRITE


def test_answered_blocks_without_a_row_are_no_gap_after_a_crash() -> None:
    again: BlockReceiver[str] = BlockReceiver(BlockMark(3, {}))
    again.on_resume(BlockResume(9))

    assert again.receive(NumberedBlock(8, 7, ["a"])) is BlockStep.WRITE


def test_a_block_that_waits_does_not_hold_up_the_answer_of_the_next_one() -> None:
    home: BlockReceiver[str] = BlockReceiver()
    home.receive(NumberedBlock(1, 0, ["live"]))
    home.pass_on(1, {0: NOT_RECORDED})
    home.receive(NumberedBlock(2, 0, ["kept"]))
    row = home.mark(2, {})
    home.done(2)  # the node has this answer when the home dies, and resends the first block only

    again: BlockReceiver[str] = BlockReceiver(row)
    again.on_resume(BlockResume(3))

    assert again.receive(NumberedBlock(1, 0, ["live"])) is BlockStep.ANSWER
    assert again.answer(1) == BlockAnswer(1, {0: NOT_RECORDED})
    assert again.receive(NumberedBlock(3, 2, ["new"])) is BlockStep.WRITE


def test_a_block_that_was_left_out_closes_the_connection() -> None:
    home: BlockReceiver[str] = BlockReceiver()

    with pytest.raises(BlocksOutOfOrder):
        home.receive(NumberedBlock(2, 0, ["a"]))


def test_c27_an_incarnation_that_was_given_out_twice_is_refused() -> None:
    home: BlockReceiver[str] = BlockReceiver(BlockMark(900, {}))

    with pytest.raises(UsedIncarnation):
        home.on_resume(BlockResume(1))


class Model:
    """A node, a home with a disk that loses what is not committed, and a connection that loses everything at any moment."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sender: BlockSender[str] = BlockSender()
        self.log: list[str] = []
        self.row: BlockMark | None = None
        self.forwarded: Counter[str] = Counter()
        self.crashes = 0
        self.told: dict[str, int] = {}
        self.to_home: list[NumberedBlock[str]] = []
        self.to_node: list[BlockAnswer] = []
        self.messages = 0
        self._start_home()

    def _start_home(self) -> None:
        self.home: BlockReceiver[str] = BlockReceiver(self.row)
        self.writing: list[tuple[int, list[str], BlockMark | None, list[str]]] = []
        self.waiting: list[tuple[int, list[str]]] = []  # for targets of what was not recorded

    def publish(self) -> None:
        """Clients of the node publish."""
        entries = [f"m{self.messages + i}" for i in range(self.random.randrange(1, 4))]
        self.messages += len(entries)
        self.to_home.append(self.sender.add(entries))

    def deliver(self) -> None:
        """A block arrives at the home."""
        if not self.to_home:
            return
        block = self.to_home.pop(0)
        match self.home.receive(block):
            case BlockStep.ANSWER:
                self._answer(self.home.answer(block.number), block)
            case BlockStep.WRITE:
                self._write(block)
            case BlockStep.WAIT:
                pass

    def _write(self, block: NumberedBlock[str]) -> None:
        outcomes = {
            index: found
            for index in range(len(block.entries))
            if (found := self.random.choice((RECORDED, RECORDED, NOT_RECORDED, QUOTA_EXCEEDED, FENCED))) != RECORDED
        }
        live = [entry for index, entry in enumerate(block.entries) if outcomes.get(index) == NOT_RECORDED]
        kept = [entry for index, entry in enumerate(block.entries) if index not in outcomes]
        if self.random.random() < 0.2:
            self.to_node.append(self.home.refused(block.number, QUOTA_EXCEEDED))
        elif kept:
            self.writing.append((block.number, kept, self.home.mark(block.number, outcomes), live))
        else:
            self.home.pass_on(block.number, outcomes)
            self.waiting.append((block.number, live))

    def forward(self) -> None:
        """The targets of some message have it."""
        if self.waiting:
            number, live = self.waiting.pop(self.random.randrange(len(self.waiting)))
            self.forwarded.update(live)
            self.to_node.append(self.home.done(number))

    def commit(self) -> None:
        """Some of what was written is on disk."""
        for _ in range(self.random.randrange(len(self.writing) + 1)):
            number, kept, row, live = self.writing.pop(0)
            self.log += kept
            self.row = row or self.row
            self.forwarded.update(live)
            self.to_node.append(self.home.done(number))

    def _answer(self, answer: BlockAnswer, block: NumberedBlock[str]) -> None:
        for index, entry in enumerate(block.entries):
            if outcome_of(answer.outcomes, index) == NOT_RECORDED:
                self.forwarded[entry] += 1
        self.to_node.append(answer)

    def hear(self) -> None:
        """An answer arrives at the node."""
        if self.to_node:
            answered = self.sender.on_answer(self.to_node.pop(0))
            if answered is not None:
                block, outcomes = answered
                for index, entry in enumerate(block.entries):
                    assert entry not in self.told, "a client was told twice"
                    self.told[entry] = outcome_of(outcomes, index)

    def reconnect(self) -> None:
        """The connection breaks, and is there again."""
        self.to_node.clear()
        self.home.on_resume(self.sender.resume())
        self.to_home = list(self.sender.unanswered())

    def crash(self) -> None:
        """The home is killed: what is not committed is gone, and the rest is read again."""
        self.crashes += 1
        if self.random.random() < 0.5:  # the kernel had written it out
            for _, kept, row, _ in self.writing:
                self.log += kept
                self.row = row or self.row
        self._start_home()
        self.reconnect()

    def settle(self) -> None:
        """Let everything that is on its way arrive."""
        while self.to_home or self.writing or self.waiting or self.to_node:
            self.deliver()
            self.commit()
            self.forward()
            self.hear()

    def check(self) -> None:
        """Every message has one answer, and it is true."""
        assert len(self.told) == self.messages
        appended = Counter(self.log)
        for entry, outcome in self.told.items():
            assert appended[entry] == (outcome == RECORDED), (entry, outcome)
            if outcome == NOT_RECORDED:
                assert self.forwarded[entry] >= 1
            elif not self.crashes:
                assert self.forwarded[entry] == 0
        order = [entry for entry in self.log if self.told[entry] == RECORDED]
        assert order == sorted(order, key=lambda entry: int(entry[1:])), "order is kept"


STEPS: tuple[Callable[[Model], None], ...] = (
    *(Model.publish, Model.deliver) * 2,
    *(Model.commit, Model.forward, Model.hear),
    *(Model.reconnect, Model.crash),
)


@pytest.mark.parametrize("block", range(20))
def test_every_message_is_recorded_once_and_its_outcome_is_right_under_any_faults(block: int) -> None:
    for seed in range(block * 250, (block + 1) * 250):
        model = Model(seed)
        for _ in range(model.random.randrange(100)):
            model.random.choice(STEPS)(model)
        model.reconnect()
        model.settle()
        try:
            model.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_outcomes_of_a_block_of_which_nothing_was_recorded_are_one_item() -> None:
    found = shortened({0: NOT_RECORDED, 1: NOT_RECORDED}, 2)

    assert len(found) == 1
    assert [outcome_of(found, index) for index in range(2)] == [NOT_RECORDED] * 2
    assert is_all_done(found)
    assert not is_refused_whole(found)


@pytest.mark.parametrize("outcomes", [{0: NOT_RECORDED}, {0: NOT_RECORDED, 1: FENCED}, {}])
def test_all_other_outcomes_stay_as_they_are(outcomes: dict[int, int]) -> None:
    assert shortened(dict(outcomes), 2) == outcomes


def test_a_block_is_all_done_only_if_every_entry_is_accepted() -> None:
    assert is_all_done({})
    assert not is_all_done({0: NOT_RECORDED})
    assert not is_all_done(BlockReceiver[str]().refused(1, 0x97).outcomes)
