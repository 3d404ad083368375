"""What a CONNECT costs: no task and no turn of the loop where the broker waits for nothing, and no routes for unread presence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.access.contract import Credentials, Granted, Verdict
from braidmq.broker.broker import Broker
from braidmq.broker.messages.hooks import Hook
from braidmq.mqtt.packets import Connack, Suback
from tests.support.simulator.offline_node import turns_until, with_broker
from tests.support.simulator.receiver import Receiver


class SlowConsent(Hook):
    """Lets everybody in, a turn of the loop later."""

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        await asyncio.sleep(0)
        return Granted(None)


def test_a_client_that_needs_no_waiting_is_answered_within_its_own_callback(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        tasks = len(asyncio.all_tasks())
        client = Receiver("one", 0, 100)

        client.connect(broker, clean_start=True)
        client.subscribe("a/b", 1)

        assert len(asyncio.all_tasks()) == tasks
        assert client.has_heard(Connack)
        await asyncio.sleep(0)  # the second write of a turn waits for the turn's end
        assert client.has_heard(Suback)

    with_broker(tmp_path, work)


def test_a_client_is_answered_when_a_slow_authenticator_is_done(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        broker.hooks.add(SlowConsent())
        client = Receiver("one", 0, 100)

        client.connect(broker, clean_start=True)
        assert not client.has_heard(Connack)
        await turns_until(lambda: client.has_heard(Connack))

        assert client.is_connected

    with_broker(tmp_path, work)


def test_an_access_control_that_fails_lets_no_client_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(credentials: Credentials) -> Verdict | None:
        raise ZeroDivisionError

    async def work(broker: Broker) -> None:
        monkeypatch.setattr(broker.access, "judge", fail)
        client = Receiver("one", 0, 100)

        client.connect(broker, clean_start=True)

        (answer,) = client.told
        assert isinstance(answer, Connack)
        assert answer.reason == 0x88
        assert not client.is_connected

    with_broker(tmp_path, work)


@pytest.mark.parametrize(("topic_filter", "are_built"), [("a/#", False), ("$SYS/#", True), ("$SYS/brokers/+/clients/#", True)])
def test_presence_creates_routes_only_if_a_filter_could_match(tmp_path: Path, topic_filter: str, are_built: bool) -> None:
    async def work(broker: Broker) -> None:
        watcher = Receiver("watcher", 0, 100)
        watcher.connect(broker, clean_start=True)
        watcher.subscribe(topic_filter, 0)
        await asyncio.sleep(0)
        visited = broker.routes.visited

        Receiver("guest", 0, 100).connect(broker, clean_start=True)
        await asyncio.sleep(0)

        assert (broker.routes.visited > visited) == are_built
        assert bool(watcher.accepted) == are_built

    with_broker(tmp_path, work)


def test_filters_of_system_topics_are_forgotten_with_their_subscriber(tmp_path: Path) -> None:
    async def work(broker: Broker) -> None:
        watcher = Receiver("watcher", 0, 100)
        watcher.connect(broker, clean_start=True)
        for topic_filter in ("$SYS/#", "$SYS/#", "$SYS/broker/uptime", "$share/g/$SYS/#"):
            watcher.subscribe(topic_filter, 0)
        assert broker.routes.system == 3

        watcher.lose()
        await turns_until(lambda: not broker.connections)
        await turns_until(lambda: broker.routes.system == 0)  # the subscriptions of a session end in slices

        assert broker.routes.system == 0

    with_broker(tmp_path, work)
