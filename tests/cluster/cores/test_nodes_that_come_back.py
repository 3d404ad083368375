"""A node that was cut off from a core comes back, and the core has something to say before the node has declared its clients."""

from __future__ import annotations

from braidmq.mqtt.packets import Disconnect
from braidmq.mqtt.reasons import Reason
from tests.support.simulator.many_cores import ManyCores


def test_c17_a_node_whose_client_was_taken_over_meanwhile_is_connected_again_and_lets_it_go() -> None:
    with ManyCores() as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        home = cluster.cores["core1"]
        client_id = cluster.client_of(home)
        before = one.client(client_id)
        one.cut(home)
        cluster.settle()
        taking = two.open()
        taking.request_connect(client_id)
        cluster.wait(3)  # the core waits in vain for the node to let go
        assert taking.receive() != []

        cluster.connect(one)

        assert [packet.reason for packet in before.receive() if isinstance(packet, Disconnect)] == [Reason.SESSION_TAKEN_OVER]
        one.client(cluster.client_of(home, "d"))
