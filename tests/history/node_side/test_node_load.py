"""Whether the node is busy, by the processor time that it uses."""

from __future__ import annotations

from braidmq.history.node_side.node_load import NodeLoad


class Node:
    """Clocks that are set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used_s = 7.0
        self.burden = NodeLoad(lambda: self.used_s, lambda: self.now)

    def passes(self, seconds: float, used_s: float) -> bool:
        self.now += seconds
        self.used_s += used_s
        return self.burden.is_high()


def test_a_working_node_is_busy_and_an_idle_one_is_not() -> None:
    node = Node()

    assert not node.passes(1.0, 0.02)
    assert node.passes(1.0, 0.5)
    assert not node.passes(1.0, 0.02)


def test_load_counts_only_the_time_since_the_last_question() -> None:
    node = Node()
    assert node.passes(1.0, 0.9)

    assert not node.passes(0.2, 0.001)


def test_questions_in_quick_succession_have_the_same_answer() -> None:
    node = Node()
    assert node.passes(1.0, 0.9)

    assert all(node.passes(0.001, 0.0) for _ in range(20))
    # and what passed meanwhile is not forgotten
    assert not node.passes(1.0, 0.0)
