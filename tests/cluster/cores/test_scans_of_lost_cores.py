"""Readers on a node whose scan of a core was lost, and the core is back at once and commits nothing more."""

from __future__ import annotations

from tests.support.simulator.many_cores import ManyCores
from tests.support.simulator.peer import payloads


def test_c22_a_message_in_flight_is_resent_when_its_core_is_back_sooner_than_a_scan_is_tried_again() -> None:
    with ManyCores() as cluster:
        one, two = cluster.node("one"), cluster.node("two")
        core, home = cluster.cores["core1"], cluster.cores["core2"]
        client_id = cluster.client_of(home, "s")
        client = one.client(client_id)
        client.subscribe("a", qos=1)
        one.client(cluster.client_of(core, "p"), expiry=0).publish("a", b"1", qos=1)
        assert payloads(client.receive()) == [b"1"]  # and it is not acknowledged
        two.freeze(core)
        client.cut()
        cluster.settle()
        back = two.client(client_id)
        cluster.wait(2)  # then nobody waits for its answer
        assert payloads(back.receive()) == []

        two.cut(core)
        cluster.settle()
        cluster.connect(two)

        cluster.wait(2)
        assert payloads(back.receive()) == [b"1"]
