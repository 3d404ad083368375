"""A message with QoS 2 that the core refuses is refused again when its client repeats it: its packet id is not remembered."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Publish, Pubrec
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.cluster_world import ClusterWorld
from tests.support.simulator.peer import Peer

RETAINED = Publish("t", b"x", 2, True, packet_id=7)
DELAYED = Publish("$delayed/5/t", b"x", 2, packet_id=7)


def repeat_elsewhere(world: ClusterWorld, message: Publish) -> Pubrec:
    """Send a message through one node, lose the connection before its answer, and repeat it through another node."""
    sender = world.replicant("one").client("c")
    sender.send(message)
    world.settle()
    sender.cut()
    again = world.replicant("two").client("c")
    again.send(message)
    return again.expect(Pubrec)


@pytest.mark.parametrize(
    "message", [Publish("t", b"x", 2, True, packet_id=7), Publish("$delayed/5/t", b"x", 2, packet_id=7)], ids=str
)
def test_a_repeat_of_what_the_core_has_refused_is_refused_again(message: Publish) -> None:
    with ClusterWorld(retained={"messages_max": 1}, delayed={"messages_max": 1}) as world:
        other: Peer = world.client("r", expiry=0)
        other.publish("full", b"r", qos=1, retain=True)
        other.publish("$delayed/9/full", b"d", qos=1)

        assert repeat_elsewhere(world, message).reason == Reason.QUOTA_EXCEEDED


@pytest.mark.parametrize(
    "message", [Publish("t", b"x", 2, True, packet_id=7), Publish("$delayed/5/t", b"x", 2, packet_id=7)], ids=str
)
def test_a_repeat_of_what_the_core_has_taken_is_acknowledged_and_not_taken_twice(message: Publish) -> None:
    with ClusterWorld() as world:
        subscriber: Peer = world.client("s", expiry=0)
        subscriber.subscribe("t")

        assert repeat_elsewhere(world, message).reason == Reason.SUCCESS

        world.wait(5.1)
        assert [each.payload for each in subscriber.acknowledge_all()] == [b"x"]
