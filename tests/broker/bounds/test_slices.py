"""Sessions that end in slices, groups that leave nothing behind, and large messages one at a time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.messages.message import make_message
from braidmq.broker.packets import slices, subscribe, unsubscribe
from braidmq.broker.session import subscriptions
from braidmq.broker.shared.group import Group
from braidmq.broker.turn import Phase
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.channel_reader import HOLD_LARGE
from braidmq.lane.path.state import State
from braidmq.lane.recording.commit_outcomes import LARGE_BYTES
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Puback, Publish, Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from braidmq.testing import Broker as RealBroker
from tests.support.clients.wire import Wire
from tests.support.simulator.offline_node import turns_until, with_broker
from tests.support.simulator.receiver import Receiver
from tests.support.stage import wait_until


def subscribe_to_many(client: Receiver, count: int, prefix: str = "many/") -> None:
    client.send(Subscribe(1, [SubscribeOption(f"{prefix}{number}/+", 1) for number in range(count)]))


def test_a_session_with_many_subscriptions_ends_over_several_turns_and_takes_nothing_meanwhile(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        client, publisher = Receiver("many", 0, 100), Receiver("publisher", 0, 100)
        client.connect(broker, clean_start=True)
        client.subscribe("$exclusive/mine", 1)
        subscribe_to_many(client, 1000)
        await turns_until(lambda: broker.routes.count == 1001)
        publisher.connect(broker, clean_start=True)

        client.lose()
        await turns_until(lambda: broker.sessions.get("many") is None)
        left = broker.routes.count
        publisher.send(Publish("many/0/x", b"", 1, packet_id=1))  # not recorded: it would wait in the session's queue
        queued, dropped = broker.state.queued_messages, broker.state.counters.dropped_session_ended
        publisher.subscribe("$exclusive/mine", 1)
        await turns_until(lambda: broker.routes.count == 1)

        assert 0 < left < 1001
        assert (queued, dropped) == (0, 1)
        assert [each.topic_filter for each in broker.routes.subscriptions()] == [b"mine"]

    with_broker(tmp_path, work, recorded=())


def slow_clock(monkeypatch: pytest.MonkeyPatch, *users: ModuleType) -> None:
    """Each look at the clock finds that half a second has passed."""
    times = count()
    for user in users:
        monkeypatch.setattr(user, "monotonic", lambda: next(times) / 2)


def test_filters_that_take_long_are_handled_one_in_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        client = Receiver("slow", 0, 100)
        client.connect(broker, clean_start=True)
        slow_clock(monkeypatch, slices, subscribe, unsubscribe)

        subscribe_to_many(client, 10)
        subscribed_at_once = broker.routes.count
        await turns_until(lambda: any(isinstance(each, Suback) for each in client.told))
        subscribed = broker.routes.count
        await turns_until(lambda: not client.connection.hold_bits)
        client.send(Unsubscribe(2, [f"many/{number}/+" for number in range(10)]))
        left = broker.routes.count
        await turns_until(lambda: any(isinstance(each, Unsuback) for each in client.told))

        assert (subscribed_at_once, subscribed, left, broker.routes.count) == (1, 10, 9, 0)

    with_broker(tmp_path, work, recorded=())


def test_a_last_filter_that_takes_long_needs_no_other_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        client = Receiver("slow", 0, 100)
        client.connect(broker, clean_start=True)
        slow_clock(monkeypatch, slices, subscribe, unsubscribe)

        subscribe_to_many(client, 1)
        is_read_on = not client.connection.hold_bits
        client.send(Unsubscribe(2, ["many/0/+"]))

        assert (is_read_on, client.connection.hold_bits, broker.routes.count) == (True, 0, 0)

    with_broker(tmp_path, work, recorded=())


def test_subscriptions_that_take_long_to_remove_are_removed_one_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(broker: Broker) -> None:
        client = Receiver("slow", 0, 100)
        client.connect(broker, clean_start=True)
        subscribe_to_many(client, 10)
        await turns_until(lambda: broker.routes.count == 10)
        session = broker.sessions.get("slow")
        assert session is not None
        slow_clock(monkeypatch, subscriptions)

        broker.subscriptions.end(session)
        left = broker.routes.count
        await turns_until(lambda: broker.routes.count == 0)

        assert left == 9

    with_broker(tmp_path, work, recorded=())


def test_a_flow_whose_session_is_over_takes_no_message_and_counts_it() -> None:
    state = State(1000, 1000)
    flow = LogFlow("over", state, 10, 1000, True, False)
    subscription = Subscription(flow, b"a", 1)
    message = make_message("a", b"1", 1)
    assert flow.has_place(message)

    flow.discard()
    for qos in (0, 1):
        flow.deliver(message, subscription, qos, False)

    assert not flow.has_place(message)
    assert (flow.queue_messages(), state.queued_messages, state.held_bytes) == (0, 0, 0)
    assert state.counters.dropped_session_ended == 2


def groups_alive() -> int:
    return sum(isinstance(each, Group) for each in gc.get_objects())


def test_an_ended_shared_group_leaves_no_reference_cycles(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        gc.collect()
        gc.disable()
        before = groups_alive()
        client = Receiver("member", 0, 100)
        client.connect(broker, clean_start=True)
        subscribe_to_many(client, 20, "$share/g/many/")
        await turns_until(lambda: len(broker.groups) == 20)
        assert groups_alive() == before + 20

        client.lose()
        await turns_until(lambda: not broker.connections and not len(broker.groups))
        del client

        assert groups_alive() == before

    try:
        with_broker(tmp_path, work)
    finally:
        gc.enable()


def test_a_client_has_one_large_message_on_its_way_to_the_disk_at_a_time(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        client = Receiver("sender", 0, 100)
        client.connect(broker, clean_start=True)
        connection = client.connection
        large = [encode(Publish(f"large/{number}", bytes(LARGE_BYTES), 1, packet_id=number), MQTT5) for number in (1, 2, 3)]

        connection.feed(b"".join(large))
        assert connection.hold_bits & HOLD_LARGE
        assert connection.messages_received == 1

        async with asyncio.timeout(20):
            while sum(isinstance(packet, Puback) for packet in client.told) < 3:  # noqa: ASYNC110  # the disk is another thread's
                await asyncio.sleep(0.001)
        async with asyncio.timeout(20):
            while connection.hold_bits:  # noqa: ASYNC110  # until its turn comes
                await asyncio.sleep(0.001)

    with_broker(tmp_path, work)


class NotingLoop:
    """Notes how long somebody wants to wait, and calls back at once."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delays_s.append(delay_s)
        asyncio.get_running_loop().call_soon(callback)


def test_the_pause_after_a_large_message_counts_what_the_log_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = NotingLoop()

    async def work(broker: Broker) -> None:
        client = Receiver("sender", 0, 100)
        client.connect(broker, clean_start=True)
        connection = client.connection
        monkeypatch.setattr(connection.context.large, "_loop", loop)

        for number, retain in ((1, False), (2, True)):
            connection.feed(encode(Publish("large", bytes(LARGE_BYTES), 1, retain=retain, packet_id=number), MQTT5))
            async with asyncio.timeout(20):
                while connection.hold_bits:  # noqa: ASYNC110  # the disk is another thread's
                    await asyncio.sleep(0.001)

    with_broker(tmp_path, work)

    recorded, recorded_and_retained = loop.delays_s
    assert recorded_and_retained == pytest.approx(2 * recorded)


def test_the_pause_after_a_large_message_is_longer_if_others_were_published_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = NotingLoop()

    async def work(broker: Broker) -> None:
        client, other = Receiver("sender", 0, 100), Receiver("other", 0, 100)
        client.connect(broker, clean_start=True)
        other.connect(broker, clean_start=True)
        connection = client.connection
        monkeypatch.setattr(connection.context.large, "_loop", loop)

        async def send_large(number: int) -> None:
            connection.feed(encode(Publish("large", bytes(LARGE_BYTES), 1, packet_id=number), MQTT5))
            async with asyncio.timeout(20):
                while connection.hold_bits:  # noqa: ASYNC110  # the disk is another thread's
                    await asyncio.sleep(0.001)

        await send_large(1)
        await send_large(2)
        other.send(Publish("small", b"", 0))
        await send_large(3)

    with_broker(tmp_path, work)

    first, second, third = loop.delays_s
    assert first == second
    assert third == pytest.approx(5 * first)


def test_long_work_gives_way_to_messages_that_are_committed(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        client = Receiver("sender", 0, 100)
        client.connect(broker, clean_start=True)
        await turns_until(lambda: not client.connection.hold_bits)
        assert not broker.turns.is_urged()

        client.send(Publish("recorded", b"", 1, packet_id=1))
        broker.turn.run_now(Phase.WRITE)

        # The loop does not turn meanwhile: another thread commits.
        wait_until(broker.turns.is_urged, "the commit")
        await turns_until(lambda: any(isinstance(each, Puback) for each in client.told))
        assert not broker.turns.is_urged()

    with_broker(tmp_path, work)


def test_small_messages_are_not_held_for_each_other(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        client = Receiver("sender", 0, 100)
        client.connect(broker, clean_start=True)
        connection = client.connection
        small = [encode(Publish(f"small/{number}", bytes(LARGE_BYTES - 1), 1, packet_id=number), MQTT5) for number in (1, 2, 3)]

        connection.feed(b"".join(small))

        await turns_until(lambda: connection.messages_received == 3)
        assert not connection.hold_bits & HOLD_LARGE
        async with asyncio.timeout(20):
            while connection.hold_bits:  # noqa: ASYNC110  # until its turn comes
                await asyncio.sleep(0.001)

    with_broker(tmp_path, work)


def test_closed_connections_leave_no_reference_cycles() -> None:
    with RealBroker() as broker:

        def come_and_go(count: int) -> None:
            for _ in range(count):
                with Wire(broker.host, broker.port, MQTT5) as wire:
                    wire.connect()
                    wire.subscribe("a/+", "$share/g/b")
            assert broker.node is not None
            connections = broker.node.broker.connections
            wait_until(lambda: not broker.call(lambda: len(connections)), "all connections are gone")

        come_and_go(2)  # what is made once
        gc.collect()
        gc.disable()
        try:
            come_and_go(100)
            found = gc.collect()
        finally:
            gc.enable()

    assert found < 100, "less than one object for each of them"
