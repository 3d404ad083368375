"""A node's log: what it collects, sends, keeps and tells, rule by rule. The home is the real one, unless it is away."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from braidmq.base.start_position import Ago, Earliest
from braidmq.broker.ports import CursorRow, MessageLog
from braidmq.cluster.protocol.operations import PutCursor, PutReceived
from braidmq.cluster.protocol.parts import MORE
from braidmq.cluster.registry.messages import Ending
from braidmq.cluster.remote.log.rows import NodeChange
from braidmq.net.frames import BODY_BYTES_MAX, BadFrame, FrameKind
from braidmq.net.proto_v1 import AnswerBody, BlockBody, Marks, PublishEntry, ReleaseEntry, RowsEntry
from braidmq.storage.reading.reader import RetentionGap
from tests.support.simulator.blocks import Client, Home, Node, Wire, connect, payloads
from tests.support.simulator.network import Network

HOME_WAIT_S = 1.0


class Pair:
    """A node, its home, and what the node has sent."""

    def __init__(self, is_connected: bool = True, bytes_max: int = 1 << 20) -> None:
        self.network: Network[Wire] = Network(1, delay_s=0.001)
        self.node = Node(self.network, home_wait_s=HOME_WAIT_S, bytes_max=bytes_max)
        self.home = Home(self.network, self.node.clients)
        self.ann: Client = self.node.join("ann", 1)
        self.bob: Client = self.node.join("bob", 2)
        self.log = self.node.log
        if is_connected:
            self.connect()

    @property
    def sent(self) -> list[tuple[int, int, BlockBody | None]]:
        """The frames of blocks: shard, flags and, of a whole one, the block."""
        return [(shard, flags, _decode(body)) for kind, shard, body, flags in self.node.sent if kind is FrameKind.BLOCK]

    def connect(self) -> None:
        connect(self.network, self.node, self.home)

    def cut(self) -> None:
        assert self.node.link is not None
        self.node.link.cut()
        self.run()

    def run(self) -> None:
        self.network.run(until=self.network.now + 0.1)

    def turn(self) -> None:
        """The node's turn ends, its blocks arrive, and the home writes them."""
        self.node.end_turn()
        self.run()
        self.home.end_turn()

    def commit(self) -> None:
        self.home.disk.commit()
        self.run()

    def congested(self) -> bool:
        return self.log.is_congested

    def bodies(self) -> list[BlockBody]:
        return [body for _, _, body in self.sent if body is not None]


def _decode(body: bytes) -> BlockBody | None:
    try:
        return msgspec.msgpack.decode(body, type=BlockBody)
    except msgspec.MsgspecError:
        return None  # the last part of several


def test_the_log_of_a_node_fills_the_port_of_the_broker() -> None:
    log: MessageLog = Pair().log

    assert not log.is_congested


def test_a_turn_makes_one_block_for_each_shard() -> None:
    pair = Pair()
    assert pair.log.shard_of("ann") != pair.log.shard_of("cid")
    cid = pair.node.join("cid", 3)
    for client in (pair.ann, cid, pair.ann):
        pair.node.publish(client)

    pair.node.end_turn()

    assert {shard: len(body.entries) for shard, _, body in [*pair.sent] if body} == {
        pair.log.shard_of("ann"): 2,
        pair.log.shard_of("cid"): 1,
    }


def test_a_message_is_acknowledged_after_its_commit_and_not_before() -> None:
    pair = Pair()
    pair.node.publish(pair.ann)

    pair.turn()
    pair.run()
    assert pair.ann.told == {}
    pair.commit()

    assert pair.ann.told == {1: "acknowledged"}
    assert payloads(pair.home, pair.ann) == [b"ann/1"]


def test_rows_are_reported_once_when_all_shards_have_answered() -> None:
    pair = Pair()
    pair.node.join("cid", 3)
    done: list[str] = []
    changes = [_cursor(pair, name, 5) for name in ("ann", "cid")]
    pair.log.change(changes, on_commit=lambda: done.append("committed"), on_refused=lambda refusal: done.append("refused"))

    pair.turn()
    pair.home.disk.commit(1)
    pair.run()
    pair.commit()

    assert done == ["committed"]
    assert pair.home.disk.cursors == {"ann": [5], "cid": [5]}


def _cursor(pair: Pair, client_id: str, position: int) -> NodeChange:
    return NodeChange(pair.log.shard_of(client_id), client_id, PutCursor(client_id, CursorRow((position,), ())))


def test_s1_the_rows_of_a_message_are_in_its_block_even_if_the_turn_needs_several() -> None:
    pair = Pair(bytes_max=1 << 24)
    for number in range(4):
        client = pair.node.join(f"many{number}", 10 + number)
        client.flow.home_shard = 0
        pair.node.publish(client, b"x" * 400_000)
        pair.node.recorder.change(NodeChange(0, client.client_id, PutReceived(client.client_id, 1)))

    pair.node.end_turn()

    bodies = pair.bodies()
    assert len(bodies) == 2
    for body in bodies:
        messages = [entry.channel for entry in body.entries if isinstance(entry, PublishEntry)]
        assert [entry.channel for entry in body.entries if isinstance(entry, RowsEntry)] == messages


def test_a_message_larger_than_a_frame_travels_in_parts() -> None:
    pair = Pair(bytes_max=1 << 24)
    text = bytes(BODY_BYTES_MAX * 2)
    pair.node.publish(pair.ann, text)

    pair.turn()
    pair.commit()

    assert [flags for _, flags, _ in pair.sent] == [MORE, MORE, 0]
    assert payloads(pair.home, pair.ann) == [text]
    assert pair.ann.told == {1: "acknowledged"}


def test_c19_what_was_never_sent_is_rejected_after_a_while() -> None:
    pair = Pair()
    pair.cut()
    pair.node.publish(pair.ann)
    pair.node.end_turn()
    assert pair.log.is_congested, "publishers wait"

    pair.network.run(until=pair.network.now + HOME_WAIT_S)

    assert pair.ann.told == {1: "refused"}
    assert not pair.congested(), "they go on, and are rejected at once"
    pair.node.publish(pair.ann)
    pair.node.end_turn()
    assert pair.ann.told[2] == "refused"
    pair.connect()
    pair.turn()
    assert pair.bodies() == []


def test_c19_what_was_sent_is_in_doubt_and_sent_again() -> None:
    pair = Pair()
    pair.node.publish(pair.ann)
    pair.turn()
    pair.cut()

    pair.network.run(until=pair.network.now + HOME_WAIT_S)
    assert pair.ann.told == {1: "in doubt"}
    pair.connect()
    pair.run()
    pair.commit()

    assert len(pair.bodies()) == 2
    assert payloads(pair.home, pair.ann) == [b"ann/1"]
    assert pair.log.unanswered_bytes == 0


def test_a_short_loss_is_not_noticed_by_publishers() -> None:
    pair = Pair()
    pair.cut()
    pair.node.publish(pair.ann)
    pair.node.end_turn()

    pair.connect()
    pair.run()
    pair.home.end_turn()
    pair.commit()
    pair.network.run(until=pair.network.now + 2 * HOME_WAIT_S)

    assert pair.ann.told == {1: "acknowledged"}
    assert pair.bodies()[0].next_number == 2, "the first block after a connection says which number is new"


def test_c33_cursors_of_an_absent_home_replace_each_other() -> None:
    pair = Pair()
    pair.cut()
    for position in range(1, 100):
        pair.node.write_cursor(pair.ann, position)
        pair.node.end_turn()
    size = pair.log.unanswered_bytes

    pair.network.run(until=pair.network.now + 2 * HOME_WAIT_S)
    pair.node.write_cursor(pair.ann, 100)
    assert pair.log.unanswered_bytes == size
    pair.connect()
    pair.turn()
    pair.commit()

    assert pair.home.disk.cursors == {"ann": [100]}
    assert pair.node.rows == []


def test_c33_cursors_alone_make_one_unanswered_block() -> None:
    pair = Pair()
    for position in range(1, 10):
        pair.node.write_cursor(pair.ann, position)
        pair.turn()
    assert len(pair.bodies()) == 1

    pair.node.publish(pair.ann)
    pair.turn()
    pair.commit()

    assert pair.home.disk.cursors == {"ann": [1, 9]}, "a message takes the last one along"


def test_a_release_follows_what_its_client_has_sent_in_the_same_turn() -> None:
    pair = Pair()
    pair.node.publish(pair.ann)
    pair.node.release(pair.ann)

    pair.turn()
    assert pair.node.rows == [], "what it sent is not committed yet"
    pair.commit()

    assert pair.home.released == [(1, Ending.PUBLISH)]
    assert pair.home.events == [(1, "message"), (1, "release")]
    assert [type(entry) for entry in pair.bodies()[0].entries] == [PublishEntry, ReleaseEntry]
    assert pair.node.rows == ["released 1"]


def test_a_release_waits_for_an_absent_home() -> None:
    pair = Pair()
    pair.cut()
    pair.node.release(pair.ann)
    pair.node.end_turn()

    pair.network.run(until=pair.network.now + 2 * HOME_WAIT_S)
    pair.connect()
    pair.turn()
    pair.commit()

    assert pair.home.released == [(1, Ending.PUBLISH)]


def test_c30_a_release_is_obeyed_even_if_its_block_is_refused() -> None:
    pair = Pair()
    pair.home.disk.is_full = True
    pair.node.publish(pair.ann)
    pair.node.release(pair.ann)

    pair.turn()
    pair.run()

    assert pair.home.released == [(1, Ending.PUBLISH)]
    assert pair.ann.told == {1: "refused"}
    assert pair.node.rows == ["released 1"]


def test_entries_of_a_fenced_channel_close_its_connection_and_are_not_written() -> None:
    pair = Pair()
    pair.home.fenced.add(1)
    pair.node.publish(pair.ann)
    pair.node.publish(pair.bob)
    pair.node.write_cursor(pair.ann, 5)

    pair.turn()
    pair.commit()

    assert pair.ann.told == {1: "in doubt"}
    assert pair.node.fenced == [1]
    assert pair.node.rows == ["in doubt"], "and its rows are not tried again"
    assert pair.bob.told == {1: "acknowledged"}
    assert pair.home.disk.cursors == {}


def test_a_refused_cursor_never_overwrites_a_later_one() -> None:
    pair = Pair()
    pair.home.disk.is_full = True
    pair.node.write_cursor(pair.ann, 1)
    pair.node.end_turn()
    pair.node.publish(pair.ann)
    pair.node.write_cursor(pair.ann, 2)
    pair.node.end_turn()
    pair.network.run(until=pair.network.now + 0.001)
    pair.home.end_turn()
    pair.home.disk.is_full = False
    pair.run()
    for _ in range(10):
        pair.network.run(until=pair.network.now + 0.5)
        pair.turn()
        pair.commit()

    assert pair.home.disk.cursors["ann"][-1] == 2
    assert pair.home.disk.cursors["ann"] == sorted(pair.home.disk.cursors["ann"])


def test_publishers_that_do_not_wait_are_not_told_to_go_on() -> None:
    pair = Pair()
    relieved: list[bool] = []
    pair.log.on_relief(lambda: relieved.append(True))

    for _ in range(3):
        pair.node.publish(pair.ann)
        pair.turn()
        pair.commit()

    assert relieved == [], "all clients would be looked at with each answer"


def test_publishers_wait_from_half_of_the_bound_to_a_quarter() -> None:
    pair = Pair(bytes_max=100_000)
    relieved: list[bool] = []
    pair.log.on_relief(lambda: relieved.append(True))
    for _ in range(6):
        pair.node.publish(pair.ann, bytes(10_000))
        pair.turn()
    assert pair.congested()

    pair.home.disk.commit(3)
    pair.run()
    assert pair.congested()
    assert relieved == []
    pair.commit()

    assert not pair.congested()
    assert relieved


def test_a_block_beyond_the_bound_is_rejected() -> None:
    pair = Pair(bytes_max=10_000)
    for _ in range(2):
        pair.node.publish(pair.ann, bytes(11_000))
        pair.turn()

    assert pair.ann.told == {2: "refused"}


@pytest.mark.parametrize("is_told", [True, False])
def test_a_congested_home_holds_publishers_until_it_says_otherwise_or_has_answered_everything(is_told: bool) -> None:
    pair = Pair()
    pair.home.congested = True
    for _ in range(2):
        pair.node.publish(pair.ann)
        pair.turn()
    pair.home.disk.commit(1)
    pair.run()
    assert pair.congested()

    if is_told:
        pair.home.congested = False
        pair.home.blocks.note_relief()
        pair.run()
    else:
        pair.commit()

    assert not pair.congested()


def test_unrecorded_messages_are_answered_when_other_nodes_have_them() -> None:
    pair = Pair()
    pair.home.holds_forward = True
    pair.node.publish(pair.ann, topic=b"live")
    pair.turn()
    pair.node.publish(pair.ann)
    pair.turn()
    pair.commit()
    assert pair.ann.told == {2: "acknowledged"}, "a block that waits does not hold up the others"

    pair.home.waits_forward[0]()
    pair.run()

    assert pair.ann.told == {1: "acknowledged", 2: "acknowledged"}


@pytest.mark.parametrize("fault", [lambda pair: pair.home.fenced.add(1), lambda pair: setattr(pair.home, "retained_full", True)])
def test_c18_a_crash_between_commit_and_answer_changes_no_outcome(fault: Callable[[Pair], None]) -> None:
    pair = Pair()
    fault(pair)
    pair.node.publish(pair.ann, retain=True)
    pair.node.publish(pair.bob)
    pair.turn()
    pair.home.crash(kept=1)
    pair.run()
    pair.home.fenced.clear()
    pair.home.retained_full = False

    pair.connect()
    pair.run()

    assert pair.ann.told[1] in ("in doubt", "refused")
    assert pair.bob.told == {1: "acknowledged"}
    assert payloads(pair.home, pair.ann) == []
    assert payloads(pair.home, pair.bob) == [b"bob/1"]


def test_c18_what_was_not_recorded_is_shown_again_only_after_a_crash() -> None:
    pair = Pair()
    pair.node.publish(pair.ann, topic=b"live")
    pair.node.publish(pair.ann)
    pair.turn()
    pair.cut()
    pair.connect()
    pair.run()
    assert pair.home.shown == [b"ann/1"]

    pair.home.crash(kept=1)
    pair.run()
    pair.connect()
    pair.run()

    assert pair.home.shown == [b"ann/1", b"ann/1"]
    assert pair.ann.told == {1: "acknowledged", 2: "acknowledged"}


def test_c39_times_follow_the_clock_of_the_home() -> None:
    pair = Pair()
    pair.log.on_marks(pair.node.blocks, Marks([1000, 2000], 5_000_000, [500, 0]))
    pair.network.run(until=pair.network.now + 1.0)

    assert pair.log.now() == pytest.approx(6_000_000, abs=10)
    assert pair.log.positions_at(Ago(5_999_000)) == {0: pytest.approx(999, abs=10), 1: pytest.approx(999, abs=10)}
    assert pair.log.positions_at(Earliest()) == {0: 0, 1: 0}
    assert pair.log.watermarks == {0: 1000, 1: 2000}


def test_gaps_are_known_from_the_floors_of_the_home() -> None:
    pair = Pair()
    pair.log.on_marks(pair.node.blocks, Marks([1000, 2000], 0, [500, 0]))
    pair.log.on_marks(pair.node.blocks, Marks([1001, 2000], 0))

    assert pair.log.gaps({0: 100, 1: 100}) == {0: RetentionGap(100, 500)}
    assert pair.log.gaps({0: 499, 1: 100}) == {}
    assert pair.log.gaps(0) == {}


def test_marks_and_answers_that_do_not_fit_close_the_connection() -> None:
    pair = Pair()

    with pytest.raises(BadFrame):
        pair.log.on_marks(pair.node.blocks, Marks([1], 0))
    with pytest.raises(BadFrame):
        pair.log.on_answer(pair.node.blocks, 0, 0, b"\xc1")
    with pytest.raises(BadFrame):
        pair.log.on_answer(pair.node.blocks, 9, 0, msgspec.msgpack.encode(AnswerBody(1, {})))
