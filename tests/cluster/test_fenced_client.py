"""A client whose node stands still while another node takes its client id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braidmq.mqtt.packets import Connack, Disconnect
from tests.support.simulator.cluster_world import ClusterWorld
from tests.support.simulator.peer import payloads

TAKEOVER_WAIT_S = 2.0  # of this world


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    with ClusterWorld() as world:
        yield world


@pytest.mark.parametrize("first", ["calls", "messages"])
def test_a_fenced_client_gets_no_message_that_its_successor_gets(world: ClusterWorld, first: str) -> None:
    """When the node continues, it may read either of its connections first."""
    one, two = world.replicant("one"), world.replicant("two")
    old = one.client("c")
    old.subscribe("a", qos=1)
    publisher = world.client("p", expiry=0)
    wires = [one.calls_wire, one.messages_wire]
    for wire in wires:
        wire.pause_reading()
    new = two.open()
    new.request_connect("c")
    world.settle()
    world.wait(TAKEOVER_WAIT_S)
    assert new.expect(Connack).session_present
    publisher.publish("a", b"m", qos=1)

    for wire in wires if first == "calls" else reversed(wires):
        wire.resume_reading()
        world.settle()

    [left] = old.receive()
    assert isinstance(left, Disconnect)
    assert left.reason == 0x8E
    assert old.is_closed
    assert payloads(new.acknowledge_all()) == [b"m"]
