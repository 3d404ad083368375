from __future__ import annotations

from braidmq.cluster.eventual.bag import Bag, BagEntry
from braidmq.cluster.registry.versions import Version
from braidmq.cluster.rlog.origin_log import Entry
from braidmq.cluster.rlog.server import RlogServer
from braidmq.cluster.rlog.tables import STORE, Tables, death_of
from braidmq.cluster.routes import origin_of
from braidmq.net.proto_v1 import RlogWatch, Snapshot

VERSION = Version(1_000, 7, 3, 2)


class Node:
    """A node with its tables and its bag."""

    def __init__(self, name: str, incarnation: int = 1) -> None:
        self.name = name
        self.rounds = 0
        self.tables = Tables(lambda changes: None)
        self.tables.open(origin_of(name), incarnation)
        self.server: RlogServer[str] = RlogServer(self.tables, lambda origin: True, lambda watcher, origin, position: None)
        self.bag = Bag(self.tables, name, incarnation, self._ask)

    def _ask(self) -> None:
        self.rounds += 1

    def pushes_to(self, watcher: str) -> list[Snapshot]:
        """What a replicant of this name gets when it watches this node's server with nothing so far."""
        self.server.receive(watcher, 1, RlogWatch(origin_of(watcher), is_core=False, vector={}))
        messages = [message for _, _, message in self.server.pump()]
        return [message for message in messages if isinstance(message, Snapshot)]


def copy(source: Node, target: Node) -> None:
    """Everything that the bag of one node has had so far reaches another."""
    origin = f"channels/{source.name}"
    log = source.tables.get(origin)
    assert log is not None
    target.tables.apply(origin, log.incarnation, 1, log.after(0, 1_000_000))


def test_a_channel_is_found_on_other_nodes_once_its_row_has_arrived() -> None:
    one, two = Node("n1", incarnation=5), Node("n2")
    one.bag.add("c", 17, VERSION)

    assert two.bag.others("c") == []
    copy(one, two)
    assert two.bag.others("c") == [BagEntry("n1", 5, 17, VERSION)]
    assert two.bag.others("d") == []
    assert one.rounds == 1, "its replicas are told"


def test_a_node_does_not_find_its_own_channels() -> None:
    node = Node("n1")
    node.bag.add("c", 1)

    assert node.bag.others("c") == []
    assert len(node.bag) == 1


def test_a_client_id_may_have_several_channels_on_one_node_and_on_many() -> None:
    one, two, three = Node("n1"), Node("n2"), Node("n3")
    one.bag.add("c", 1)
    one.bag.add("c", 2)
    two.bag.add("c", 9)
    copy(one, three)
    copy(two, three)

    assert [(each.node, each.channel) for each in three.bag.others("c")] == [("n1", 1), ("n1", 2), ("n2", 9)]
    one.bag.remove("c", 1)
    copy(one, three)
    assert [(each.node, each.channel) for each in three.bag.others("c")] == [("n1", 2), ("n2", 9)]


def test_the_row_goes_with_its_last_channel() -> None:
    node = Node("n1")
    node.bag.add("c", 1)
    node.bag.remove("c", 2)
    assert len(node.bag) == 1

    node.bag.remove("c", 1)
    assert len(node.bag) == 0
    node.bag.remove("c", 1)
    assert node.rounds == 2, "what is not there is not removed"


def test_the_death_of_a_node_ends_its_rows_with_its_routes() -> None:
    dead, other = Node("n1", incarnation=3), Node("n2")
    dead.bag.add("c", 1)
    copy(dead, other)
    other.tables.open(STORE, 1)

    other.tables.write(STORE, [death_of(origin_of("n1"), 4)])

    assert other.bag.others("c") == []
    copy(dead, other)
    assert other.bag.others("c") == [], "entries that come late count no more"


def test_a_node_gets_the_rows_of_all_others_and_not_its_own() -> None:
    core, one = Node("core1"), Node("n1")
    one.bag.add("c", 1)
    copy(one, core)

    assert [(part.origin, part.keys) for part in core.pushes_to("n2")] == [("channels/n1", [b"c"])]
    assert core.pushes_to("n1") == []


def test_a_row_that_cannot_be_told_from_a_route_is_none() -> None:
    """Rows of the bag have an origin of their own, so the sequence of a node's routes does not rise with its clients."""
    node = Node("n1")
    node.bag.add("#", 1)

    routes = node.tables.get(origin_of("n1"))
    assert routes is not None
    assert (routes.sequence, dict(routes.rows)) == (0, {})
    node.tables.write(origin_of("n1"), [Entry(b"#", b"l")])
    assert node.bag.others("#") == []
