"""Committed messages are shown as far as a turn has work for; the rest comes in later turns, and nothing overtakes it."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.path.ports import SharedGroup
from braidmq.lane.routing.routes import GROUP_WEIGHT, WIDE
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packets import MQTT5, Puback, Publish
from tests.lane.recording.published import RecordingBench, RecordingChannel
from tests.support.simulator.lane import FakeChannel


class TurnBench(RecordingBench):
    """A lane whose later turns the test asks for."""

    def __init__(self, work_max: int, weight_max: int = 0) -> None:
        super().__init__()
        self.state.work_max = work_max
        self.routes.weight_max = weight_max
        self.asked = 0
        self.recorder.outcomes.on_more = self._ask
        self.congestion: list[bool] = []
        self.recorder.outcomes.on_late = lambda: self.congestion.append(self.recorder.outcomes.is_late)

    def _ask(self) -> None:
        self.asked += 1

    def turn(self) -> int:
        """Go on in another turn, if that was asked for; how many deliveries it made."""
        assert self.asked == 1, "asked for once"
        self.asked = 0
        before = self.state.counters.delivered
        self.recorder.outcomes.go_on()
        return self.state.counters.delivered - before

    def turns(self) -> list[int]:
        """Go on until nothing is left; the deliveries of each turn."""
        found = []
        while self.asked:
            found.append(self.turn())
        return found

    def follower(self, number: int, topic_filter: bytes = b"#") -> FakeChannel:
        """A client that follows the log."""
        flow = LogFlow(f"s{number}", self.state, 1000, 1_000_000, False, False)
        self.routes.add(Subscription(flow, topic_filter, 1))
        return self.channel(flow, MQTT5, 1000)


def commit(bench: TurnBench, publisher: RecordingChannel, *numbers: int) -> int:
    """Let messages be published and committed; how many deliveries were made at once."""
    for number in numbers:
        bench.recorder.record(Message(b"t", b"%d" % number, 1, False, "p"), publisher.flow, publisher, 1, number, False)
    before = bench.state.counters.delivered
    bench.take().committed({0: [100 + number for number in numbers]})
    return bench.state.counters.delivered - before


def payloads(channel: FakeChannel) -> list[int]:
    return [int(packet.payload) for packet in channel.sent() if isinstance(packet, Publish)]


def test_a_commit_of_many_messages_is_shown_over_several_turns() -> None:
    bench = TurnBench(work_max=100)
    followers = [bench.follower(number) for number in range(10)]

    at_once = commit(bench, bench.client(), *range(1, 51))
    later = bench.turns()

    assert at_once + sum(later) == 500
    # A message is begun while there is work left, and has ten destinations.
    assert max(at_once, *later) <= 110
    assert all(payloads(each) == list(range(1, 51)) for each in followers)
    assert bench.state.marks[0] == 150


def test_a_message_that_is_not_shown_is_neither_acknowledged_nor_marked() -> None:
    bench = TurnBench(work_max=20)
    bench.follower(0)
    publisher = bench.client()

    commit(bench, publisher, *range(1, 51))

    shown = bench.state.marks[0] - 100
    assert 0 < shown < 50
    assert bench.state.unshown == 50 - shown
    assert publisher.sent() == [Puback(number) for number in range(1, shown + 1)]
    bench.turns()
    assert bench.state.unshown == 0
    assert publisher.sent() == [Puback(number) for number in range(shown + 1, 51)]


def test_a_later_commit_does_not_overtake_what_still_waits() -> None:
    bench = TurnBench(work_max=20)
    follower = bench.follower(0)
    publisher = bench.client()
    commit(bench, publisher, *range(1, 31))

    assert commit(bench, publisher, *range(31, 41)) == 0
    bench.recorder.outcomes.show(Message(b"t", b"41", 0, False, "node"), None, None, 0, 0)
    bench.turns()

    assert payloads(follower) == list(range(1, 42))


def test_commits_of_one_turn_share_its_work() -> None:
    bench = TurnBench(work_max=20)
    bench.state.on_turn = lambda: None
    bench.follower(0)
    publisher = bench.client()

    shown = sum(commit(bench, publisher, number) for number in range(1, 31))

    assert 0 < shown <= 20


def test_a_message_with_more_destinations_than_a_turn_has_work_for_is_shown_in_parts() -> None:
    bench = TurnBench(work_max=100, weight_max=100)
    followers = [bench.follower(number) for number in range(1000)]
    publisher = bench.client()

    at_once = commit(bench, publisher, 1, 2)
    assert bench.state.marks[0] == 100, "nobody may count on the first one yet"
    assert publisher.sent() == []
    later = bench.turns()

    assert at_once + sum(later) == 2000
    assert max(at_once, *later) <= 110
    assert all(payloads(each) == [1, 2] for each in followers)
    assert bench.state.marks[0] == 102
    assert publisher.sent() == [Puback(1), Puback(2)]


def test_a_message_that_is_not_recorded_is_shown_in_parts_too() -> None:
    bench = TurnBench(work_max=100, weight_max=100)
    followers = [bench.follower(number) for number in range(1000)]

    bench.recorder.outcomes.show(Message(b"t", b"7", 0, False, "node"), None, None, 0, 0)
    assert bench.state.counters.delivered <= 110
    bench.turns()

    assert all(payloads(each) == [7] for each in followers)
    assert bench.state.counters.dropped_no_subscribers == 0


@pytest.mark.parametrize(("groups", "sessions", "is_wide"), [(0, 100, False), (0, 101, True), (5, 0, False), (6, 0, True)])
def test_a_route_is_wide_by_the_weight_of_its_destinations(groups: int, sessions: int, is_wide: bool) -> None:
    bench = TurnBench(work_max=100, weight_max=5 * GROUP_WEIGHT)
    for number in range(groups + sessions):
        group = mock.Mock(spec=SharedGroup) if number < groups else None
        bench.routes.add(Subscription(bench.flow(str(number)), b"#", 0, False, False, b"", group))

    route = bench.routes.resolve(b"t")

    assert route is not None
    assert bool(route.flags & WIDE) == is_wide


def test_a_flow_that_stops_following_between_two_parts_knows_whether_it_was_offered_the_message() -> None:
    bench = TurnBench(work_max=1, weight_max=1)
    followers = [bench.follower(number) for number in range(10)]

    commit(bench, bench.client(), 1)
    bench.turn()
    got = [bool(payloads(each)) for each in followers]
    flows: list[LogFlow] = [each.flow for each in followers]  # type: ignore[misc]
    for flow in flows:
        flow.fall_behind()

    assert 0 < sum(got) < 10
    assert [flow.positions[0] for flow in flows] == [101 if has_it else 100 for has_it in got]


@given(
    actions=st.lists(st.tuples(st.sampled_from(["turn", "leave", "join", "behind"]), st.integers(0, 11)), max_size=40),
    work_max=st.integers(1, 5),
)
def test_each_flow_gets_each_message_once_under_any_events_between_two_parts(
    actions: list[tuple[str, int]], work_max: int
) -> None:
    bench = TurnBench(work_max=work_max, weight_max=1)
    followers = [bench.follower(number) for number in range(12)]
    flows: list[LogFlow] = [each.flow for each in followers]  # type: ignore[misc]
    subscribed = [True] * 12
    stayed = [True] * 12
    numbers = list(range(1, 6))
    commit(bench, bench.client(), *numbers)

    for action, number in actions:
        if action == "turn" and bench.asked:
            bench.turn()
        elif action == "leave":
            bench.routes.remove(b"#", flows[number])
            subscribed[number] = stayed[number] = False
        elif action == "join" and not subscribed[number]:
            bench.routes.add(Subscription(flows[number], b"#", 1))
            subscribed[number] = True
        elif action == "behind":
            flows[number].fall_behind()
    bench.turns()

    for number, follower in enumerate(followers):
        live = payloads(follower)
        assert live == sorted(set(live)), "in order, and none twice"
        if not flows[number].is_following:
            # It reads on from its position in the log: what it was sent and what it will read meet exactly.
            read = [each for each in numbers if 100 + each > flows[number].positions[0]]
            assert not set(live) & set(read)
            live += read
        if stayed[number]:
            assert live == numbers


def test_publishers_wait_while_the_backlog_is_long() -> None:
    bench = TurnBench(work_max=1)
    bench.follower(0)
    client = bench.client()
    for number in range(11_000):
        bench.recorder.outcomes.show(Message(b"t", b"%d" % number, 0, False, "node"), client.flow, None, 0, 0)
    assert bench.congestion == [True]

    bench.state.work_max = 1000
    bench.turns()

    assert bench.congestion == [True, False]


def test_when_the_node_stops_everything_is_shown_at_once() -> None:
    bench = TurnBench(work_max=1, weight_max=1)
    followers = [bench.follower(number) for number in range(20)]
    commit(bench, bench.client(), 1, 2)

    bench.recorder.outcomes.finish()

    assert all(payloads(each) == [1, 2] for each in followers)
    assert bench.state.unshown == 0


# Records of another node


def fed(timestamp: int, shard: int = 0, payload: bytes = b"fed") -> Message:
    message = Message(b"t", payload, 1, False, "other")
    if timestamp:
        message.set_position(shard, timestamp)
    return message


def test_records_of_another_node_keep_their_order_with_marks_and_answers_behind_a_backlog() -> None:
    bench = TurnBench(work_max=10)
    outcomes = bench.recorder.outcomes
    followers = [bench.follower(number) for number in range(8)]
    bench.recorder.is_remote = True
    publisher = bench.client()
    send_own = bench.recorder.record(Message(b"t", b"own", 1, False, "p"), publisher.flow, publisher, 1, 9, False)
    seen: list[list[int]] = []

    for timestamp in (101, 102, 103):
        outcomes.show_record(fed(timestamp))
    outcomes.end_records()
    outcomes.after_shown(lambda: seen.append(list(bench.state.marks)))
    outcomes.advance_marks([110, 15])
    outcomes.answer([send_own], [0])

    assert bench.state.marks == [101, 20]  # the work of one turn
    assert (seen, publisher.sent()) == ([], [])
    bench.turns()
    assert seen == [[103, 20]]
    assert bench.state.marks == [110, 20]
    assert publisher.sent() == [Puback(9)]
    assert [len(each.sent()) for each in followers] == [3] * 8


def test_without_a_backlog_marks_advance_and_callbacks_run_at_once() -> None:
    bench = TurnBench(work_max=1000)
    seen: list[str] = []

    bench.recorder.outcomes.advance_marks([50, 15])
    bench.recorder.outcomes.after_shown(lambda: seen.append("shown"))

    assert (bench.state.marks, seen, bench.asked) == ([50, 20], ["shown"], 0)


def test_a_record_of_another_node_with_many_destinations_is_shown_in_parts() -> None:
    bench = TurnBench(work_max=20, weight_max=20)
    followers = [bench.follower(number) for number in range(50)]

    bench.recorder.outcomes.show_record(fed(101))
    bench.recorder.outcomes.end_records()

    assert bench.state.marks == [100, 20]
    assert sum(len(each.sent()) for each in followers) <= 21
    bench.turns()
    assert bench.state.marks == [101, 20]


def test_a_repeated_record_is_skipped_even_while_the_first_one_waits() -> None:
    bench = TurnBench(work_max=1)
    follower = bench.follower(0)

    for timestamp in (101, 102, 101, 102, 103):
        bench.recorder.outcomes.show_record(fed(timestamp, payload=b"%d" % timestamp))
    bench.recorder.outcomes.end_records()
    bench.turns()

    assert [packet.payload for packet in follower.sent() if isinstance(packet, Publish)] == [b"101", b"102", b"103"]
