"""The paced comparison of a home's table with the nodes' own lists of their channels (R19).

It finds what should not exist: a channel in the table that its node does not know, so that nothing would ever release it; and a
channel that a node serves and the home does not know. Page by page, a node is asked for its channels in a range of numbers. It
names every channel from its claim until its release is answered, so one that it does not name has ended. Even so, the sweep only
removes what was decided before the question, and that very entry. A channel that the home does not know is declared again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple

from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import Action, Ending, Node, SweepAnswer

PAGE: Final = 1000  # channels of the table in one question


class SweepQuestion(NamedTuple, Generic[Node]):
    """Ask a node for its channels with numbers above ``first``, up to ``last``; 0: all above."""

    node: Node
    first: int
    last: int


class _AskedPage(NamedTuple, Generic[Node]):
    """A question, the channels of the table in its range, and when it was asked, by the clock of the log."""

    question: SweepQuestion[Node]
    numbers: list[int]
    moment: int


class RegistrySweep(Generic[Node]):
    """Asks one page at a time."""

    def __init__(self, claims: HomeClaims[Node]) -> None:
        self._claims = claims
        self._pages: list[tuple[SweepQuestion[Node], list[int]]] = []  # of this pass, the next one last
        self._asked: dict[Node, _AskedPage[Node]] = {}  # the last question
        self.passes = 0  # over all nodes
        self.removed = 0  # entries
        self.found = 0  # channels that the table lacked

    def next_question(self, nodes: Sequence[Node]) -> SweepQuestion[Node] | None:
        """What to ask next; a new pass over these nodes if the last one is over. None: there is no node to ask."""
        if not self._pages:
            self.passes += bool(nodes)
            self._pages = [page for node in nodes for page in self._pages_of(node)]
            self._pages.reverse()
        if not self._pages:
            return None
        question, numbers = self._pages.pop()
        self._asked[question.node] = _AskedPage(question, numbers, self._claims.moment())
        return question

    def begin_again(self) -> None:
        """Forget what is left of this pass."""
        self._pages.clear()
        self._asked.clear()

    @property
    def is_over(self) -> bool:
        """Whether the pass is over; an answer may be under way."""
        return not self._pages

    def is_asking(self, node: Node) -> bool:
        """Whether an answer of a node is under way."""
        return node in self._asked

    def _pages_of(self, node: Node) -> list[tuple[SweepQuestion[Node], list[int]]]:
        numbers = sorted(self._claims.numbers_of(node))
        parts = [numbers[start : start + PAGE] for start in range(0, len(numbers), PAGE)] or [[]]
        edges = [0, *(part[-1] for part in parts[:-1]), 0]
        return [(SweepQuestion(node, edges[i], edges[i + 1]), part) for i, part in enumerate(parts)]

    def answered(self, node: Node, answer: SweepAnswer) -> tuple[list[Action[Node]], list[int]]:
        """What is to be done, and the channels that the node has to declare again."""
        asked = self._asked.get(node)
        if asked is None or (asked.question.first, asked.question.last) != (answer.first, answer.last):
            return [], []  # it answers an earlier question
        del self._asked[node]
        named = {*answer.served, *answer.others}
        actions: list[Action[Node]] = []
        for number in asked.numbers:
            if number not in named and self._claims.is_settled_before(node, number, asked.moment):
                self.removed += 1
                actions += self._claims.release(node, number, Ending.DIED)
        unknown = [number for number in answer.served if not self._claims.has(node, number)]
        self.found += len(unknown)
        return actions, unknown

    def forget(self, node: Node) -> None:
        """The node's connection is lost, or the node is dead: it will not answer."""
        self._asked.pop(node, None)
        self._pages = [page for page in self._pages if page[0].node != node]
