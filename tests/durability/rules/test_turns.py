"""Packets that are much work are done in pieces, so that others have their turn."""

from __future__ import annotations

from itertools import count

import pytest

from braidmq.broker.packets import slices, subscribe, unsubscribe
from braidmq.mqtt.packets import Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from tests.support.simulator.world import World


@pytest.mark.parametrize(("filter_us", "is_at_once"), [(0, True), (100, False)])
def test_filters_that_take_long_are_more_work_for_one_turn(
    filter_us: int, is_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at_clock = count()
    for module in (slices, subscribe, unsubscribe):
        monkeypatch.setattr(module, "monotonic", lambda: next(looked_at_clock) * filter_us / 1e6)
    with World() as world:
        client = world.connect("c", expiry=0)
        filters = [f"+/a/{number}" for number in range(40)]
        client.send(Subscribe(1, [SubscribeOption(each, 0) for each in filters]))
        client.connection.lane.flush()

        assert [type(packet) for packet in client.take()] == ([Suback] if is_at_once else [])
        assert [type(packet) for packet in client.receive()] == ([] if is_at_once else [Suback])
        client.send(Unsubscribe(2, filters))
        client.connection.lane.flush()

        assert [type(packet) for packet in client.take()] == ([Unsuback] if is_at_once else [])
        assert [type(packet) for packet in client.receive()] == ([] if is_at_once else [Unsuback])
