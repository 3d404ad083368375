"""A node that is not home: sessions come with grants and leave with their connections; wills and timers are their homes'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.access.contract import Refused
from braidmq.broker.broker import Broker
from braidmq.broker.ports import StoredSession, SubscriptionRow
from braidmq.broker.session.ports import GrantEnding
from braidmq.mqtt.packets import Connack, Disconnect, Publish, Pubrec, Pubrel, Subscribe, SubscribeOption, Will
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason
from tests.broker.session.moving import RowsRegistry, add_carrier, give_away, stored_session
from tests.support.simulator.peer import Peer, payloads
from tests.support.simulator.world import World

LONG_S = 10_000
WILL = Will("will", b"gone", 0, False)


class Carrying:
    """A node that is not home, and a client there that hears wills."""

    def __init__(self, world: World, node: Broker, registry: RowsRegistry) -> None:
        self.world, self.node, self.registry = world, node, registry
        self.watcher = world.connect("w", node=node, expiry=0)
        self.watcher.subscribe("will", qos=0)

    def connect(self, **fields: Any) -> Peer:
        return self.world.connect("c", node=self.node, **fields)

    @property
    def endings(self) -> list[tuple[bool, GrantEnding]]:
        """Whether a session was kept, and how the grant ended, for each grant of the client."""
        return [(keeps_session, ending) for client_id, keeps_session, ending in self.registry.ended if client_id == "c"]

    def stored(self) -> StoredSession | None:
        self.world.settle()
        return stored_session(self.world, "c")

    def has_forgotten(self) -> bool:
        """Whether the node has nothing of the client, and publishes no will of it however long it takes."""
        self.world.wait(LONG_S)
        is_silent = payloads(self.watcher.receive()) == []
        has_routes = self.node.subscriptions.count() > 1
        return is_silent and not has_routes and self.node.sessions.get("c") is None and not self.node.sessions.will_bytes


@pytest.fixture
def carrying() -> Iterator[Carrying]:
    with World() as world:
        yield Carrying(world, *add_carrier(world))


def test_a_session_leaves_with_its_connection_and_its_will_stays_in_the_rows(carrying: Carrying) -> None:
    client = carrying.connect(expiry=100, will=WILL)
    client.subscribe("a", qos=1)

    client.cut()

    stored = carrying.stored()
    assert stored is not None
    assert (stored.will, [each.written for each in stored.subscriptions]) == (WILL, ["a"])
    assert stored.session.ended_at > 0
    assert carrying.endings == [(True, GrantEnding.PUBLISH)]
    assert carrying.has_forgotten()
    assert carrying.stored() is not None, "no timer of this node ends it"


def test_a_client_that_says_goodbye_takes_its_will_out_of_the_rows(carrying: Carrying) -> None:
    carrying.connect(expiry=100, will=WILL).disconnect()

    stored = carrying.stored()
    assert stored is not None
    assert stored.will is None
    assert carrying.endings == [(True, GrantEnding.DISCARD)]
    assert carrying.has_forgotten()


def test_a_node_that_stops_says_that_its_clients_have_moved(carrying: Carrying) -> None:
    client = carrying.connect(expiry=100, will=WILL)

    client.connection.close(Reason.SERVER_SHUTTING_DOWN, "the node is stopping", discard_will=True)

    stored = carrying.stored()
    assert stored is not None
    assert stored.will == WILL, "the home keeps it for a while"
    assert carrying.endings == [(True, GrantEnding.MOVED)]


@pytest.mark.parametrize("says_goodbye", [False, True])
def test_a_memory_session_is_over_and_its_home_learns_how(carrying: Carrying, says_goodbye: bool) -> None:
    client = carrying.connect(expiry=0, will=WILL)
    client.subscribe("a", qos=1)

    client.disconnect() if says_goodbye else client.cut()

    assert carrying.stored() is None
    assert carrying.endings == [(False, GrantEnding.DISCARD if says_goodbye else GrantEnding.PUBLISH)]
    assert carrying.has_forgotten()


def test_a_session_that_ends_with_its_disconnect_is_ended_by_its_home(carrying: Carrying) -> None:
    client = carrying.connect(expiry=100, will=WILL)

    client.send(Disconnect(0x04, Properties(session_expiry_interval=0)))

    stored = carrying.stored()
    assert stored is not None
    assert (stored.session.expiry_s, stored.will) == (0, WILL)
    assert carrying.endings == [(True, GrantEnding.PUBLISH)]
    assert carrying.has_forgotten()


def test_a_session_comes_back_with_the_grant(carrying: Carrying) -> None:
    client = carrying.connect(will=WILL)
    client.subscribe("a", qos=2)
    client.send(Publish("a", b"m", 2, packet_id=9))
    packets = client.receive()
    (mine,) = [packet for packet in packets if isinstance(packet, Publish)]
    assert [packet.packet_id for packet in packets if isinstance(packet, Pubrec)] == [9]
    client.cut()
    carrying.world.settle()

    again = carrying.connect()
    received = again.receive()
    again.send(Publish("a", b"m", 2, dup=True, packet_id=9))

    assert again.connack.session_present
    (repeated,) = [packet for packet in received if isinstance(packet, Publish)]
    assert (repeated.packet_id, repeated.dup, repeated.payload) == (mine.packet_id, True, b"m")
    assert [packet for packet in again.receive() if not isinstance(packet, Pubrec)] == [], "it is not published again"


def test_a_clean_start_gets_a_grant_without_a_session(carrying: Carrying) -> None:
    carrying.connect().subscribe("a", qos=1)
    give_away(carrying.world, "c", carrying.node)

    again = carrying.connect(clean=True)

    assert not again.connack.session_present


def test_a_client_that_goes_before_its_connack_leaves_the_session_its_own_terms(carrying: Carrying) -> None:
    carrying.connect(expiry=100, will=WILL).cut()
    carrying.world.settle()
    before = carrying.stored()
    newcomer = carrying.world.open(node=carrying.node)
    newcomer.request_connect("c", expiry=7, will=Will("will", b"another", 0, False))
    carrying.world.turn(3)
    assert carrying.node.sessions.get("c") is not None, "it is held, and its rows are on their way"

    newcomer.cut()

    stored = carrying.stored()
    assert stored is not None
    assert before is not None
    assert (stored.session.expiry_s, stored.will) == (100, WILL)
    assert stored.session.ended_at == pytest.approx(before.session.ended_at, abs=1)
    assert carrying.endings == [(True, GrantEnding.PUBLISH), (True, GrantEnding.WITHDRAWN)]
    assert carrying.has_forgotten()


def test_a_memory_session_that_is_abandoned_leaves_nothing(carrying: Carrying) -> None:
    newcomer = carrying.world.open(node=carrying.node)
    newcomer.request_connect("c", expiry=0, will=WILL)

    newcomer.cut()

    assert carrying.stored() is None
    assert carrying.endings == [(False, GrantEnding.WITHDRAWN)]
    assert carrying.has_forgotten()


def test_a_new_session_that_cannot_be_stored_is_withdrawn(carrying: Carrying) -> None:
    newcomer = carrying.world.open(node=carrying.node)
    newcomer.request_connect("c", will=WILL)
    carrying.world.fill_disk()
    carrying.world.settle()

    assert [packet.reason for packet in newcomer.take() if isinstance(packet, Connack)] == [Reason.QUOTA_EXCEEDED]
    carrying.world.free_disk()
    carrying.world.tick(2)
    assert carrying.endings == [(False, GrantEnding.WITHDRAWN)]
    assert carrying.stored() is None
    assert carrying.has_forgotten()


def test_a_client_that_is_banned_while_its_grant_was_under_way_leaves_the_session_alone(carrying: Carrying) -> None:
    carrying.connect(expiry=100, will=WILL).cut()
    before = carrying.stored()
    newcomer = carrying.world.open(node=carrying.node)
    newcomer.request_connect("c", expiry=7)
    carrying.node.access.bans.add(client_id="c")  # type: ignore[attr-defined]
    carrying.world.settle()

    assert [packet.reason for packet in newcomer.take() if isinstance(packet, Connack)] == [Reason.NOT_AUTHORIZED]
    assert carrying.stored() == before
    assert carrying.endings[1:] == [(True, GrantEnding.WITHDRAWN)]
    assert carrying.has_forgotten()


def test_a_refused_claim_changes_nothing(carrying: Carrying) -> None:
    carrying.registry.refused = Refused(Reason.SERVER_BUSY, "a newer connection has this client id")
    newcomer = carrying.world.open(node=carrying.node)
    newcomer.request_connect("c")

    assert newcomer.expect(Connack).reason == Reason.SERVER_BUSY
    assert carrying.endings == []
    assert carrying.has_forgotten()


def test_a_session_that_this_node_did_not_let_go_in_time_is_replaced_by_what_the_grant_brings(carrying: Carrying) -> None:
    """The home has fenced the old channel and granted the client id again, to the same node."""
    old = carrying.connect()
    old.subscribe("a", qos=1)
    stale = carrying.node.sessions.get("c")

    new = carrying.connect()

    assert old.is_closed
    assert new.connack.session_present
    session = carrying.node.sessions.get("c")
    assert session is not None
    assert session is not stale
    assert set(session.subscriptions) == {"a"}
    assert carrying.endings == [(True, GrantEnding.TAKEN)]
    carrying.world.connect("p", node=carrying.node, expiry=0).publish("a", b"m", 1)
    assert payloads(new.receive()) == [b"m"]


def test_a_grant_whose_session_cannot_be_restored_is_given_up(carrying: Carrying) -> None:
    carrying.connect(expiry=100).cut()
    carrying.world.settle()
    writer = carrying.world.broker.turn_writer
    writer.write(writer.storage.sessions.put_subscription("c", SubscriptionRow("$share/g", 1, False, False, b"", (1, 1))))
    carrying.world.settle()
    newcomer = carrying.world.open(node=carrying.node)

    newcomer.request_connect("c")
    carrying.world.settle()

    assert newcomer.is_closed
    assert carrying.endings == [(True, GrantEnding.PUBLISH), (True, GrantEnding.WITHDRAWN)]
    assert carrying.has_forgotten()


def test_sessions_are_not_counted_on_a_node_that_is_not_home() -> None:
    with World(session={"sessions_max": 1}) as world:
        node, _ = add_carrier(world)

        world.connect("a", node=node, expiry=0)
        world.connect("b", node=node, expiry=0)

        assert len(node.sessions) == 2


def test_the_home_publishes_the_will_of_a_session_that_was_left(carrying: Carrying) -> None:
    watcher = carrying.world.connect("watcher", expiry=0)
    watcher.subscribe("will", qos=0)
    carrying.connect(expiry=100, will=WILL).cut()
    stored = carrying.stored()
    assert stored is not None

    carrying.world.broker.restoration.restore(stored, waits=True)
    carrying.world.wait(1)

    assert payloads(watcher.receive()) == [b"gone"]
    assert carrying.stored() is not None
    carrying.world.wait(100)
    assert carrying.stored() is None


def test_a_subscription_on_its_way_to_the_disk_is_in_the_rows_when_the_client_goes(carrying: Carrying) -> None:
    client = carrying.connect()
    client.send(Subscribe(5, [SubscribeOption("a", 1)]))

    client.cut()

    stored = carrying.stored()
    assert stored is not None
    assert [each.written for each in stored.subscriptions] == ["a"]


def test_released_messages_survive_the_disconnect_of_their_client(carrying: Carrying) -> None:
    client = carrying.connect()
    client.subscribe("a", qos=2)
    carrying.world.connect("p", node=carrying.node, expiry=0).publish("a", b"m", 2)
    (message,) = [packet for packet in client.receive() if isinstance(packet, Publish)]
    client.send(Pubrec(message.packet_id or 0))
    client.cut()
    carrying.world.settle()

    again = carrying.connect()

    assert again.receive() == [Pubrel(message.packet_id or 0)]
