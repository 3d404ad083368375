"""A group's cursor over the log: leases, returned messages, the order of reading, and the stored row."""

from __future__ import annotations

from time import time

import pytest

from braidmq.broker.ports import GroupRow
from braidmq.lane.path.message import Message, from_record
from braidmq.lane.routing.routes import NEVER
from tests.broker.shared.group_house import TOPIC, House


@pytest.fixture
def house() -> House:
    return House()


def test_a_message_is_leased_at_its_commit_until_acknowledged(house: House) -> None:
    house.join("a")
    house.join("b")

    house.publish(b"1")
    house.publish(b"2")

    assert (house.received("a"), house.received("b")) == ([b"1"], [b"2"])
    assert house.group.log.row() == GroupRow("g", "t/+", (1002, 1), house.places(b"1", b"2"))
    house.acknowledge("a", 1)
    assert house.group.log.row().outstanding == house.places(b"2")


def test_messages_beyond_the_members_windows_are_read_from_the_log_in_order(house: House) -> None:
    house.join("a", window=1)
    house.publish(b"1")
    house.publish(b"2", shard=1)
    house.publish(b"3", shard=0)
    assert (house.group.log.is_following, house.services.awaited) == (False, ["a"])
    assert house.group.log.row() == GroupRow("g", "t/+", (1001, 1002 - 1), house.places(b"1")), "just before the second"

    for packet_id in (1, 2):
        house.acknowledge("a", packet_id)

    assert house.received("a") == [b"1", b"2", b"3"]
    assert house.flows["a"].queue_messages() == 0
    house.acknowledge("a", 3)
    assert house.group.log.is_following
    assert house.group.log.row() == GroupRow("g", "t/+", (1003, 1002), ())


def test_a_group_of_offline_members_reads_nothing_until_one_returns(house: House) -> None:
    house.join("a")
    house.lose("a")
    for number in range(5):
        house.publish(b"%d" % number)
    assert not house.services.slots.reading

    house.connect("a")

    assert house.received("a") == [b"0", b"1", b"2", b"3", b"4"]
    assert house.group.log.is_following
    assert not house.services.slots.reading


def test_unacknowledged_messages_of_a_lost_connection_are_redelivered_first_in_order(house: House) -> None:
    house.join("a", window=3)
    for number, shard in enumerate((1, 0, 1)):
        house.publish(b"%d" % number, shard=shard)
    house.acknowledge("a", 1)
    house.lose("a")
    house.publish(b"3")
    assert house.group.log.row().outstanding == house.places(b"1", b"2")
    assert house.flows["a"].inflight_messages() == 0

    house.join("b")
    house.groups.relieve_all([house.group])
    house.services.turn()

    assert house.received("b") == [b"1", b"2", b"3"]


def test_a_negative_acknowledgement_settles_a_message(house: House) -> None:
    house.join("a")
    house.publish(b"1")

    house.acknowledge("a", 1, 0x80)
    house.lose("a")

    assert house.group.log.row().outstanding == ()


def test_a_message_too_large_for_its_member_counts_as_acknowledged(house: House) -> None:
    house.join("a")
    house.channels["a"].frame_max_out = 20
    house.publish(b"1")

    house.publish(b"2" * 100)

    assert house.received("a") == [b"1"]
    assert house.group.log.row().outstanding == house.places(b"1")


def test_a_qos_2_lease_is_written_at_once_and_stays_with_its_session(house: House) -> None:
    house.join("a", qos=2)
    house.services.written.clear()
    house.publish(b"1", qos=2)
    assert True in house.services.written
    assert house.group.log.row().outstanding == ()
    house.join("b", qos=2)

    house.lose("a")

    assert house.received("b") == []
    assert house.flows["a"].inflight_messages() == 1


def test_a_qos_2_message_whose_lease_could_not_be_written_goes_to_another_member(house: House) -> None:
    house.join("a", qos=2)
    record = house.record(b"1", qos=2)
    house.group.log.offer(from_record(0, record))
    house.bench.state.marks[0] = record.timestamp
    assert house.received("a") == []
    house.join("b", qos=2)

    house.groups.take_back(house.flows["a"], house.flows["a"].take_unready())
    house.lose("a")
    house.settle()

    assert house.received("b") == [b"1"]
    assert house.flows["a"].inflight_messages() == 0


def test_outstanding_messages_are_read_before_others_after_a_restart(house: House) -> None:
    for number in range(200):
        house.record(b"%d" % number, shard=number % 2)
    house.services.log.records_per_slice = 7
    house.bench.state.marks = list(house.services.log.watermarks.values())
    house.join("a", window=200)
    house.lose("a")

    positions = tuple(timestamp for _, timestamp in house.places(b"196", b"197"))
    house.groups.restore([GroupRow("g", "t/+", positions, house.places(b"3", b"4", b"150", b"9"))])
    house.connect("a", window=200)

    assert house.received("a") == [b"3", b"4", b"9", b"150", b"198", b"199"]
    assert house.services.lost == 0


def test_outstanding_messages_deleted_by_retention_are_counted_and_do_not_block(house: House) -> None:
    house.join("a")
    house.lose("a")
    for number in range(3):
        house.record(b"%d" % number)
    outstanding = house.places(b"0", b"1", b"2")
    del house.services.log.records[:2]
    house.bench.state.marks = list(house.services.log.watermarks.values())

    house.groups.restore([GroupRow("g", "t/+", (1003, 1), outstanding)])
    house.connect("a")

    assert house.received("a") == [b"2"]
    assert house.services.lost == 2
    assert house.group.log.is_following


def test_a_row_without_members_is_removed(house: House) -> None:
    house.groups.forget(house.groups.restore([GroupRow("gone", "x/#", (1, 1), ())]))

    assert house.services.forgotten == [("gone", "x/#")]


def test_qos_0_messages_go_to_connected_members_only(house: House) -> None:
    house.join("a")
    house.publish(b"live", qos=0)
    assert house.received("a") == [b"live"]
    house.lose("a")
    house.publish(b"missed", qos=0)
    house.publish(b"kept", qos=1)
    assert house.bench.state.counters.dropped_absent == 1

    house.connect("a")

    assert house.received("a") == [b"kept"]


def test_a_message_that_has_expired_when_read_is_dropped(house: House) -> None:
    house.join("a")
    house.lose("a")
    house.publish(b"first")
    now = int(time() * 1_000_000)
    house.record(b"old", expires_at=now - 1)
    house.record(b"new", expires_at=now + 60_000_000)
    house.bench.state.marks[0] = house.clock

    house.connect("a")

    assert house.received("a") == [b"first", b"new"]
    assert house.bench.state.counters.dropped_expired == 1


def test_a_hook_is_called_with_the_original_message_for_the_next_member(house: House) -> None:
    def sign(message: Message, client_id: str) -> Message:
        return Message(message.topic, message.payload + client_id.encode(), message.qos, False, "p")

    house.services.hook = sign
    house.join("a")
    house.publish(b"1")
    assert house.received("a") == [b"1a"]
    assert house.group.log.row().outstanding == house.places(b"1")
    house.join("b")

    house.lose("a")

    assert house.received("b") == [b"1b"]


def test_a_message_dropped_by_a_hook_is_settled(house: House) -> None:
    house.services.hook = lambda message, client_id: None
    house.join("a")

    house.publish(b"1")

    assert house.received("a") == []
    assert house.group.log.is_following
    assert house.group.log.row().outstanding == ()


def test_messages_are_recorded_for_a_group_while_it_has_a_durable_member(house: House) -> None:
    def keep_qos() -> int:
        route = house.bench.routes.resolve(TOPIC)
        assert route is not None
        return route.keep_qos

    house.join("m", is_durable=False)
    assert keep_qos() == NEVER
    house.join("a")
    assert keep_qos() == 1
    house.groups.leave(house.group, house.flows["a"])
    assert keep_qos() == NEVER
    assert house.services.forgotten == [("g", "t/+")]
    assert house.bench.routes.count == 1


def test_a_group_is_forgotten_with_its_last_member(house: House) -> None:
    house.join("a", window=1)
    house.publish(b"1")
    house.publish(b"2")
    log = house.group.log

    house.groups.leave(house.group, house.flows["a"])
    house.lose("a")

    assert house.services.forgotten == [("g", "t/+")]
    assert log.is_over
    assert len(house.groups) == 0
    assert house.flows["a"].inflight_messages() == 1, "what it has been sent stays its own"


def test_messages_sent_to_a_member_that_left_the_group_stay_outstanding(house: House) -> None:
    house.join("a")
    house.publish(b"1")
    house.join("b")

    house.groups.leave(house.group, house.flows["a"])

    assert house.group.log.row().outstanding == house.places(b"1")
    house.lose("a")
    assert house.received("b") == [b"1"]


def test_the_first_member_sets_the_start_of_the_group(house: House) -> None:
    for number in range(4):
        house.record(b"%d" % number)
    house.bench.state.marks[0] = house.clock

    house.join("a", start=(house.places(b"1")[0][1], 1))
    house.join("b", start=(1, 1))
    house.groups.relieve_all([house.group])
    house.services.turn()

    assert sorted(house.received("a") + house.received("b")) == [b"2", b"3"]


def test_a_group_without_a_slot_resumes_when_it_gets_one(house: House) -> None:
    house.join("a")
    house.lose("a")
    house.publish(b"1")
    house.services.slots.is_free = False
    house.connect("a")
    assert house.received("a") == []

    house.services.slots.is_free = True
    house.group.log.wake()
    house.services.turn()

    assert house.received("a") == [b"1"]


def test_a_group_that_gives_up_its_slot_loses_and_repeats_nothing(house: House) -> None:
    house.join("a", window=1)
    for number in range(4):
        house.publish(b"%d" % number)
    house.acknowledge("a", 1)

    house.group.log.pause()
    for packet_id in (2, 3, 4):
        house.acknowledge("a", packet_id)

    assert house.received("a") == [b"0", b"1", b"2", b"3"]


def test_durable_and_memory_members_take_turns(house: House) -> None:
    house.join("a")
    house.join("m", is_durable=False)

    for number in range(4):
        house.publish(b"%d" % number)

    assert (house.received("a"), house.received("m")) == ([b"0", b"2"], [b"1", b"3"])
