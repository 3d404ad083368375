"""Messages for very many groups are deferred and delivered in order; a group's row excludes deferred ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.ports import GroupRow
from braidmq.lane.flows.group_flow import DEFERRED_BYTES_MAX
from braidmq.lane.path.message import Message, from_record
from braidmq.mqtt.packets import Publish, Subscribe, SubscribeOption
from tests.broker.shared.group_house import TOPIC, House
from tests.support.simulator.offline_node import turns_until, with_broker
from tests.support.simulator.receiver import Receiver


class WideHouse(House):
    """What is published by ``publish_wide`` counts as a message for very many groups."""

    def publish_wide(self, payload: bytes, shard: int = 0) -> None:
        self.bench.state.is_deferring = True
        self.publish(payload, shard=shard)
        self.bench.state.is_deferring = False

    def pass_on(self, payload: bytes, *, is_wide: bool) -> None:
        """Publish a message that nobody records."""
        route = self.bench.routes.resolve(TOPIC)
        assert route is not None
        self.bench.state.is_deferring = is_wide
        self.bench.lane.publish(Message(TOPIC, payload, 0, False, "p"), route, None)
        self.bench.state.is_deferring = False
        self.settle()

    def hand_out(self) -> None:
        self.bench.state.deferring.clear()
        self.group.log.hand_out_deferred()
        self.settle()


@pytest.fixture
def house() -> WideHouse:
    return WideHouse()


def test_messages_for_very_many_groups_are_deferred_in_order(house: WideHouse) -> None:
    house.join("a")

    house.publish_wide(b"1")
    house.publish(b"2", shard=1)
    house.pass_on(b"3", is_wide=False)

    assert house.received("a") == []
    assert [flow.group for flow in house.bench.state.deferring] == [house.group.log]
    house.hand_out()
    assert house.received("a") == [b"1", b"2", b"3"]
    house.publish(b"4")
    assert house.received("a") == [b"4"], "nothing waits any more"
    assert house.bench.state.deferred_bytes == 0


def test_deferred_messages_are_above_the_stored_positions(house: WideHouse) -> None:
    house.join("a")
    house.publish(b"1")
    house.publish_wide(b"2")
    house.publish_wide(b"3", shard=1)
    house.publish_wide(b"4")

    assert house.group.log.row() == GroupRow("g", "t/+", (1001, 1002), house.places(b"1"))
    house.hand_out()
    assert house.group.log.row() == GroupRow("g", "t/+", (1004, 1003), house.places(b"1", b"2", b"3", b"4"))


def test_a_group_that_falls_behind_reads_its_deferred_messages_once(house: WideHouse) -> None:
    house.join("a")
    house.join("b")
    house.publish(b"1")
    house.publish_wide(b"2")
    house.publish_wide(b"3")

    house.lose("a")  # what it was leased comes back

    assert house.bench.state.deferred_bytes == 0
    house.hand_out()
    assert house.received("b") == [b"1", b"2", b"3"]
    assert house.group.log.is_following


def test_a_group_whose_members_run_out_of_room_reads_the_rest_from_the_log(house: WideHouse) -> None:
    house.join("a", window=1)
    for payload in (b"1", b"2", b"3"):
        house.publish_wide(payload)

    house.hand_out()

    assert house.received("a") == [b"1"]
    assert house.group.log.row() == GroupRow("g", "t/+", (1001, 1), house.places(b"1"))
    house.acknowledge("a", 1)
    house.acknowledge("a", 2)
    assert house.received("a") == [b"2", b"3"]


def test_unrecorded_messages_are_delivered_although_the_group_is_behind(house: WideHouse) -> None:
    house.join("a", window=1)
    house.publish_wide(b"1")
    house.publish_wide(b"2")
    house.pass_on(b"3", is_wide=True)

    house.hand_out()

    assert house.received("a") == [b"1", b"3"]


def test_recorded_messages_beyond_the_bound_are_left_to_the_log(house: WideHouse) -> None:
    house.join("a")
    house.publish_wide(b"1")
    house.bench.state.deferred_bytes += 2 * DEFERRED_BYTES_MAX  # of other groups

    house.publish_wide(b"2")
    house.pass_on(b"3", is_wide=True)

    assert not house.group.log.is_following
    house.services.turn()
    assert house.received("a") == [b"3", b"1", b"2"]
    assert house.bench.state.deferred_bytes == 2 * DEFERRED_BYTES_MAX


def test_a_group_that_reads_the_log_defers_no_recorded_messages(house: WideHouse) -> None:
    house.join("a", start=(1, 1))
    house.publish_wide(b"1")

    assert house.bench.state.deferring == []
    assert house.bench.state.deferred_bytes == 0


def test_deferred_messages_survive_when_the_group_becomes_durable(house: WideHouse) -> None:
    house.join("a", is_durable=False)
    house.publish_wide(b"1")

    house.join("b")
    house.hand_out()

    assert house.received("a") + house.received("b") == [b"1"]


def test_an_ended_group_leaves_no_deferred_messages(house: WideHouse) -> None:
    house.join("a")
    house.publish_wide(b"1")

    house.groups.leave(house.group, house.flows["a"])

    assert house.bench.state.deferred_bytes == 0


def test_a_message_expires_while_it_is_deferred(house: WideHouse) -> None:
    house.join("a")
    record = house.record(b"1", expires_at=1)
    house.bench.state.marks[0] = record.timestamp
    house.bench.state.is_deferring = True
    house.group.flow.deliver(from_record(0, record), house.group._members[0], 1, False)

    house.hand_out()

    assert house.received("a") == []
    assert house.bench.state.counters.dropped_expired == 1


def test_delivery_to_thousands_of_groups_does_not_delay_other_clients(tmp_path: Path) -> None:
    groups = 3000

    async def work(broker: Broker) -> None:
        sharer, ordinary, publisher = (Receiver(name, 0, 100) for name in ("sharer", "ordinary", "publisher"))
        for client in (sharer, ordinary, publisher):
            client.connect(broker, clean_start=True)
        sharer.send(Subscribe(1, [SubscribeOption(f"$share/g{number}/wide", 0) for number in range(groups)]))
        ordinary.send(Subscribe(1, [SubscribeOption("narrow", 0)]))
        async with asyncio.timeout(20):
            while len(broker.groups) < groups:  # noqa: ASYNC110  # a packet this large is decoded in a thread
                await asyncio.sleep(0.001)

        publisher.send(Publish("wide", b"1", 1, packet_id=1))
        publisher.send(Publish("narrow", b"2", 1, packet_id=2))
        async with asyncio.timeout(20):
            while not ordinary.accepted:  # noqa: ASYNC110  # the disk is another thread's
                await asyncio.sleep(0)

        assert len(sharer.accepted) < groups // 2
        await turns_until(lambda: len(sharer.accepted) == groups)

    with_broker(tmp_path, work)
