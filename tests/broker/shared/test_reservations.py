"""QoS 2 reservations of memory sessions wait for the group's row (S10), and the number of leases is bounded."""

from __future__ import annotations

import pytest

from braidmq.broker.ports import GroupRow
from braidmq.broker.shared import cursor as shared_log
from braidmq.lane.path.message import Message
from braidmq.lane.records.records import Record, encode_record
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.packet_types import PacketType
from tests.broker.shared.group_house import TOPIC, House


class Kept(House):
    """A house whose group is kept on disk, because the member ``d`` is durable; it is away, so others get everything."""

    def __init__(self, *members: str, window: int = 10) -> None:
        super().__init__()
        self.join("d", qos=2)
        self.lose("d")
        for name in members:
            self.join(name, qos=2, window=window, is_durable=False)

    def commit(self) -> None:
        """The row is on disk."""
        self.services.reserving.clear()
        self.group.log.keep(self.group.log.take_reservations())
        self.bench.lane.flush()
        self.services.turn()


def test_a_qos_2_message_for_a_memory_session_is_sent_once_the_groups_row_is_on_disk() -> None:
    house = Kept("m")

    house.publish(b"1", qos=2)
    house.publish(b"2", qos=2)

    assert house.received("m") == []
    assert house.services.reserving == [house.group.log] * 2
    assert house.group.log.row() == GroupRow("g", "t/+", (1002, 1), ()), "it says that the group has them no longer"
    house.commit()
    assert house.received("m") == [b"1", b"2"]
    assert house.group.log.is_following


def test_qos_1_messages_and_memory_groups_do_not_wait_for_the_disk() -> None:
    house = Kept("m")
    house.publish(b"1", qos=1)
    assert house.received("m") == [b"1"]

    fleeting = House()
    fleeting.join("m", qos=2, is_durable=False)
    fleeting.publish(b"2", qos=2)
    assert fleeting.received("m") == [b"2"]


def test_a_reservation_occupies_the_window() -> None:
    house = Kept("m", window=2)

    for number in range(4):
        house.publish(b"%d" % number, qos=2)
    assert not house.group.log.is_following
    house.commit()

    assert house.received("m") == [b"0", b"1"]
    assert house.flows["m"].outstanding == 2


def test_a_reservation_of_a_disconnected_member_goes_to_another() -> None:
    house = Kept("m", "n")
    house.publish(b"1", qos=2)
    house.lose("m")
    house.groups.leave(house.group, house.flows["m"])

    house.commit()
    assert house.received("n") == []
    house.commit()

    assert house.received("n") == [b"1"]
    assert house.group.log.row().outstanding == ()


def test_a_reservation_of_an_unsubscribed_member_goes_to_another() -> None:
    house = Kept("m", "n")
    house.publish(b"1", qos=2)
    house.groups.leave(house.group, house.flows["m"])

    house.commit()
    house.commit()

    assert (house.received("m"), house.received("n")) == ([], [b"1"])


def test_a_reservation_that_no_longer_fits_returns_to_the_group_and_is_written_at_once() -> None:
    house = Kept("m", window=1)
    house.publish(b"1", qos=2)
    flow = house.flows["m"]
    flow.deliver(Message(b"other", b"x", 1, False, "p"), Subscription(flow, b"other", 1), 1, False)
    house.services.written.clear()

    house.commit()

    assert house.received("m") == [b"x"]
    assert house.group.log.row().outstanding == house.places(b"1")
    assert True in house.services.written
    house.acknowledge("m", 1)
    house.commit()
    assert house.received("m") == [b"1"]


def test_a_full_disk_sends_and_loses_nothing_and_is_retried_later() -> None:
    house = Kept("m")
    house.publish(b"1", qos=2)
    reservations = house.group.log.take_reservations()

    house.group.log.release_reservations(reservations)
    house.services.turn()
    house.group.log.keep(reservations)  # a late word of an earlier write

    assert house.received("m") == []
    assert house.group.log.row().outstanding == house.places(b"1")
    assert house.services.reserving == [house.group.log], "not tried again at once"
    house.publish(b"2", qos=2)
    (again,) = house.services.put_off
    again()
    house.services.turn()
    house.commit()
    assert house.received("m") == [b"1", b"2"]


def test_a_hook_gets_the_original_message_of_a_failed_reservation() -> None:
    house = Kept("m", "n")
    house.services.hook = lambda message, client_id: Message(TOPIC, message.payload + client_id.encode(), 2, False, "p")
    house.publish(b"1", qos=2)
    house.groups.leave(house.group, house.flows["m"])

    house.commit()
    house.commit()

    assert house.received("n") == [b"1n"]


def test_the_number_of_leases_is_bounded_by_the_size_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_log, "_LEASED_MAX", 3)
    house = House()
    house.join("a", window=10)
    for number in range(5):
        house.publish(b"%d" % number)
    house.services.turn()
    assert house.received("a") == [b"0", b"1", b"2"]
    assert not house.group.log.is_following

    house.acknowledge("a", 1)

    assert house.received("a") == [b"3"]
    house.lose("a")
    house.connect("a")
    assert house.received("a") == [b"1", b"2", b"3"]
    assert house.group.log.outstanding == 3


def test_an_acknowledgement_by_a_former_member_frees_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_log, "_LEASED_MAX", 2)
    house = House()
    house.join("a")
    house.publish(b"0")
    house.publish(b"1")
    house.join("b")
    house.groups.leave(house.group, house.flows["a"])
    house.publish(b"2")
    assert house.received("b") == []

    house.channels["a"].acknowledged(PacketType.PUBACK, 1, 0)
    house.services.turn()

    assert house.received("b") == [b"2"]


def test_history_from_before_the_group_is_delivered_like_a_replay() -> None:
    house = House()
    hidden = encode_record(TOPIC, b"hidden", 1, False, "p", b"", 0, -1, 0, True)
    house.record(b"0", qos=0)
    house.services.log.records.append((0, Record(house.clock + 1, hidden)))
    house.clock += 1
    house.record(b"1")
    house.bench.state.marks[0] = house.clock
    house.join("a", window=1, start=(1, 1))
    house.lose("a")
    house.record(b"missed", qos=0)
    house.services.log.records.append(
        (0, Record(house.clock + 1, encode_record(TOPIC, b"2", 1, False, "p", b"", 0, -1, 0, True)))
    )
    house.bench.state.marks[0] = house.clock + 1
    row = house.group.log.row()
    assert row.since == (house.clock - 1, 1)

    again = House()
    again.services.log.records = house.services.log.records
    again.bench.state.marks = list(house.bench.state.marks)
    again.join("a")
    again.lose("a")
    again.groups.restore([row])
    again.connect("a")

    assert again.received("a") == [b"0", b"1", b"2"]
    assert again.group.log.is_following
    assert again.group.log.row().since == ()


def test_a_group_that_waits_for_memory_does_not_spin() -> None:
    house = House()
    house.join("a")
    house.lose("a")
    house.publish(b"1")
    house.services.log.is_ready = False

    house.connect("a")

    assert house.received("a") == []
    assert not house.services.put_off
    house.services.log.make_ready()
    house.services.turn()
    assert house.received("a") == [b"1"]
