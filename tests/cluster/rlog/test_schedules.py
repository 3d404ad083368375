"""Single schedules of the replication log, step by step; the random ones are in ``test_simulated``."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from braidmq.cluster.rlog.agent import AgentState
from braidmq.cluster.rlog.origin_log import Entry, OriginLog
from braidmq.cluster.rlog.replica import ForeignRows, Replica, ReplicaState
from braidmq.cluster.rlog.server import RlogServer
from braidmq.cluster.rlog.tables import STORE, RowChange, Tables, death_of
from braidmq.net.proto_v1 import Applied, CaughtUp, Entries, NotWatched, Position, RlogMessage, Snapshot
from tests.cluster.rlog.nodes import RlogCluster


def put(*keys: str) -> list[Entry]:
    """Entries that add these rows."""
    return [Entry(key.encode(), b"") for key in keys]


def gone(*keys: str) -> list[Entry]:
    """Entries that remove these rows."""
    return [Entry(key.encode(), None) for key in keys]


def keys_of(tables: Tables, origin: str) -> set[str]:
    """The rows that count now."""
    return {key.decode() for key, _ in tables.rows(origin)}


class Edge:
    """A replica and what it was told of changed rows."""

    def __init__(self, own: str = "edge") -> None:
        self.changes: list[RowChange] = []
        self.tables = Tables(self.changes.extend)
        self.replica = Replica(self.tables, own, is_core=False, accepts=lambda origin: origin != own)

    def load(self, origin: str, position: Position, *keys: str) -> None:
        """Let it have a copy."""
        loading = self.tables.begin_load(origin, position)
        assert loading is not None
        self.tables.load(loading, [key.encode() for key in keys], [b""] * len(keys))
        self.tables.end_load(loading)
        self.changes.clear()


class Core:
    """A server with one origin, a node's routes, and a replica that is connected to it directly."""

    def __init__(self, entries_max: int = 1000) -> None:
        self.tables = Tables(lambda changes: None, entries_max=entries_max)
        self.tables.open("node", 7)
        self.applied: list[Position] = []
        self.server: RlogServer[str] = RlogServer(
            self.tables, lambda origin: True, lambda watcher, origin, position: self.applied.append(position)
        )
        self.snapshots = 0

    def serve(self, edge: Edge, *, steps_max: int = 1000) -> None:
        """Pass messages on until neither side has anything to say."""
        for _ in range(steps_max):
            said = [*self.server.round(), *self.server.pump()]
            if not said:
                return
            for _, number, message in said:
                self.snapshots += isinstance(message, Snapshot) and message.is_first
                self.pass_back(edge.replica.receive(number, message))
        raise AssertionError("it does not come to an end")

    def pass_back(self, replies: Iterable[tuple[int, RlogMessage]]) -> None:
        """Give a replica's answers to the server."""
        for number, reply in replies:
            self.server.receive("edge", number, reply)

    def connect(self, edge: Edge) -> None:
        """The replica watches this server."""
        self.pass_back([edge.replica.connect()])


def test_an_empty_replica_gets_a_snapshot_then_the_log_and_is_normal() -> None:
    core, edge = Core(), Edge()
    core.tables.write("node", put("a", "b"))

    states = [edge.replica.state]
    core.connect(edge)
    states.append(edge.replica.state)
    core.serve(edge)
    core.tables.write("node", [*put("c"), *gone("a")])
    core.serve(edge)

    assert [*states, edge.replica.state] == [ReplicaState.DISCONNECTED, ReplicaState.REPLAY, ReplicaState.NORMAL]
    assert keys_of(edge.tables, "node") == {"b", "c"}
    assert core.applied[-1] == Position(7, 4)
    assert core.snapshots == 1


def test_a_replica_that_missed_changes_gets_only_those() -> None:
    core, edge = Core(), Edge()
    core.tables.write("node", put(*(f"t/{i}" for i in range(500))))
    core.connect(edge)
    core.serve(edge)
    edge.changes.clear()

    edge.replica.disconnect()
    core.server.lost("edge")
    core.tables.write("node", [*put("new"), *gone("t/3")])
    core.connect(edge)
    core.serve(edge)

    assert edge.changes == [RowChange("node", b"new", b""), RowChange("node", b"t/3", None)]
    assert core.snapshots == 1


@pytest.mark.row("F7")
def test_a_replica_beyond_the_log_gets_a_snapshot_of_that_origin_only() -> None:
    core, edge = Core(entries_max=10), Edge()
    core.tables.open("other", 3)
    core.tables.write("other", put("x"))
    core.tables.write("node", put("a", "b"))
    core.connect(edge)
    core.serve(edge)
    core.snapshots = 0

    edge.replica.disconnect()
    core.server.lost("edge")
    core.tables.write("node", [*gone("a"), *put(*(f"t/{i}" for i in range(20)))])
    core.connect(edge)
    core.serve(edge)

    assert core.snapshots == 1
    assert keys_of(edge.tables, "node") == {"b", *(f"t/{i}" for i in range(20))}


def test_c2_an_entry_of_a_dead_node_that_was_still_queued_is_not_applied() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60), "a")

    edge.tables.fence("node", 6)
    edge.tables.apply("node", 5, 61, put("b"))

    assert keys_of(edge.tables, "node") == set()
    assert edge.changes == [RowChange("node", b"a", None)]


def test_c2_a_death_in_the_store_fences_and_a_snapshot_of_the_dead_is_ignored() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60), "a")
    edge.load(STORE, Position(1, 0))

    edge.tables.apply(STORE, 1, 1, [death_of("node", 6)])

    assert keys_of(edge.tables, "node") == set()
    assert edge.tables.begin_load("node", Position(5, 61)) is None
    assert edge.tables.begin_load("node", Position(6, 0)) is not None


def test_a_death_in_a_snapshot_of_the_store_fences_as_well() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60), "a")

    loading = edge.tables.begin_load(STORE, Position(1, 9))
    assert loading is not None
    entry = death_of("node", 6)
    assert entry.value is not None
    edge.tables.load(loading, [entry.key], [entry.value])

    assert keys_of(edge.tables, "node") == set()


def test_a_new_incarnation_is_not_touched_by_the_death_of_the_old_one_whichever_comes_first() -> None:
    for is_late in (False, True):
        edge = Edge()
        edge.load("node", Position(5, 60), "a")
        if not is_late:
            edge.tables.fence("node", 6)
        edge.load("node", Position(6, 2), "a", "b")
        if is_late:
            edge.tables.fence("node", 6)

        assert keys_of(edge.tables, "node") == {"a", "b"}


def test_a_fence_during_the_load_of_the_next_incarnation_drops_the_old_rows_at_once() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60), "a", "b")
    loading = edge.tables.begin_load("node", Position(6, 2))
    assert loading is not None
    edge.tables.load(loading, [b"b"], [b""])

    edge.tables.fence("node", 6)

    assert keys_of(edge.tables, "node") == {"b"}
    edge.tables.end_load(loading)
    assert keys_of(edge.tables, "node") == {"b"}


def test_a_node_keeps_its_own_rows_whatever_is_said_about_it() -> None:
    tables = Tables(lambda changes: None)
    tables.open("me", 6)
    tables.write("me", put("mine"))

    tables.fence("me", 7)

    assert keys_of(tables, "me") == {"mine"}


def test_c6_rows_stay_while_a_snapshot_is_loaded_and_those_it_does_not_name_go_at_its_end() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60), "kept", "gone")

    loading = edge.tables.begin_load("node", Position(5, 900))
    assert loading is not None
    edge.tables.load(loading, [b"kept"], [b""])
    assert keys_of(edge.tables, "node") == {"kept", "gone"}
    edge.tables.end_load(loading)

    assert keys_of(edge.tables, "node") == {"kept"}
    assert edge.changes == [RowChange("node", b"gone", None)]  # a row that was there and stays is no change


def test_c6_entries_that_arrive_beside_a_snapshot_are_not_swept() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60), "old")

    loading = edge.tables.begin_load("node", Position(5, 900))
    assert loading is not None
    edge.tables.apply("node", 5, 901, [*put("young"), *put("old")])
    edge.tables.end_load(loading)

    assert keys_of(edge.tables, "node") == {"young", "old"}
    assert edge.tables.vector()["node"] == Position(5, 902)


@pytest.mark.parametrize("start", [Position(5, 60), Position(5, 59), Position(4, 1000)])
def test_c6_a_snapshot_that_is_not_newer_is_ignored(start: Position) -> None:
    edge = Edge()
    edge.load("node", Position(5, 60), "a")

    assert edge.tables.begin_load("node", start) is None


def test_a_snapshot_that_breaks_off_leaves_the_position_of_before() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60), "a")
    loading = edge.tables.begin_load("node", Position(5, 900))
    assert loading is not None
    edge.tables.load(loading, [b"b"], [b""])
    edge.tables.apply("node", 5, 901, put("c"))

    edge.tables.abandon_load(loading)

    assert edge.tables.vector()["node"] == Position(5, 60)
    assert keys_of(edge.tables, "node") == {"a", "b", "c"}
    assert edge.tables.get("node") is not None
    log = edge.tables.get("node")
    assert log is not None
    assert not log.reaches(59)  # what led to these rows is not in it


def test_the_end_of_an_older_watch_does_not_end_the_snapshot_of_a_newer_one() -> None:
    edge = Edge()
    older = edge.tables.begin_load("node", Position(5, 60))
    newer = edge.tables.begin_load("node", Position(5, 60))
    assert older is not None
    assert newer is not None

    edge.tables.abandon_load(older)
    edge.tables.load(newer, [b"a"], [b""])
    edge.tables.end_load(newer)

    assert edge.tables.vector()["node"] == Position(5, 60)


@pytest.mark.row("F7")
def test_a_push_under_the_number_of_an_earlier_watch_is_rejected() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60))
    earlier, _ = edge.replica.connect()
    edge.replica.connect()

    replies = edge.replica.receive(earlier, Entries("node", 5, 61, [b"a"], [b""]))

    assert replies == [(earlier, NotWatched())]
    assert keys_of(edge.tables, "node") == set()


def test_a_rejected_agent_is_gone() -> None:
    core, edge = Core(), Edge()
    core.connect(edge)

    core.server.receive("edge", edge.replica.watch, NotWatched())

    assert core.server.agents == {}


def test_rows_of_an_origin_that_the_server_does_not_write_are_an_error() -> None:
    edge = Edge("edge")
    number, _ = edge.replica.connect()

    with pytest.raises(ForeignRows, match="edge"):
        edge.replica.receive(number, Entries("edge", 5, 1, [b"a"], [b""]))


def test_a_gap_makes_the_replica_ask_again_from_where_its_rows_are() -> None:
    edge = Edge()
    edge.load("node", Position(5, 60))
    number, _ = edge.replica.connect()

    replies = edge.replica.receive(number, Entries("node", 5, 62, [b"a"], [b""]))

    ((again, watch),) = replies
    assert again > number
    assert watch == edge.replica.connect()[1]


def test_a_server_that_is_behind_its_replica_goes_on_when_it_gets_there() -> None:
    core, edge = Core(), Edge()
    core.tables.write("node", put("a"))
    edge.load("node", Position(7, 3), "a", "b", "c")
    core.connect(edge)

    core.serve(edge)
    assert edge.replica.state is ReplicaState.NORMAL
    assert edge.changes == []
    core.tables.write("node", put("b", "c", "d"))
    core.serve(edge)

    assert edge.changes == [RowChange("node", b"d", b"")]
    assert core.snapshots == 0


def test_an_agent_without_credit_sends_nothing_and_reads_the_log_when_it_has_some() -> None:
    core, edge = Core(entries_max=100_000), Edge()
    core.connect(edge)
    core.serve(edge)
    agent = core.server.agents["edge"]

    sent: list[tuple[int, RlogMessage]] = []
    for number in range(100):
        core.tables.write("node", put(*(f"{number}/{i}/" + "x" * 200 for i in range(100))))
        sent += [(number, message) for _, number, message in core.server.round()]
    assert agent.state is AgentState.CATCHUP
    assert not core.server.is_busy
    assert sum(len(message.keys) for _, message in sent if isinstance(message, Entries)) < 10_000

    for number, message in sent:
        core.pass_back(edge.replica.receive(number, message))
    core.serve(edge)

    assert len(keys_of(edge.tables, "node")) == 10_000
    assert core.snapshots == 0


def test_agents_that_follow_share_the_messages_of_a_round() -> None:
    core = Core()
    edges = [Edge(f"edge{i}") for i in range(3)]
    for edge in edges:
        core.server.receive(edge.replica._own, *edge.replica.connect())
    list(core.server.round())
    while core.server.is_busy:
        list(core.server.pump())

    core.tables.write("node", put("a"))
    messages = {id(message) for _, _, message in core.server.round()}

    assert len(messages) == 1


def test_a_node_that_never_wrote_costs_no_message() -> None:
    core, edge = Core(), Edge()
    core.connect(edge)

    assert [type(message) for _, _, message in (*core.server.round(), *core.server.pump())] == [CaughtUp]


def test_an_empty_new_incarnation_replaces_the_rows_of_the_old_one() -> None:
    core, edge = Core(), Edge()
    edge.load("node", Position(6, 60), "a")
    core.connect(edge)

    core.serve(edge)

    assert keys_of(edge.tables, "node") == set()


def test_reports_of_progress_carry_the_number_of_the_watch() -> None:
    core, edge = Core(), Edge()
    core.tables.write("node", put("a"))
    core.connect(edge)

    said = [message for _, _, message in (*core.server.round(), *core.server.pump())]

    assert [type(message) for message in said] == [Snapshot, CaughtUp]
    replies = edge.replica.receive(edge.replica.watch, said[0])
    assert replies == [(edge.replica.watch, Applied("node", Position(7, 1), 17))]


@pytest.mark.parametrize("sequence", range(10))
def test_the_log_has_what_comes_after_a_sequence(sequence: int) -> None:
    log = OriginLog(1, entries_max=6)
    log.append([Entry(b"%d" % number, b"") for number in range(1, 10)])

    assert log.reaches(sequence) is (sequence >= 3)
    if log.reaches(sequence):
        assert [int(entry.key) for entry in log.after(sequence, 1_000_000)] == list(range(sequence + 1, 10))


def test_a_batch_is_bounded_in_bytes_and_never_empty() -> None:
    log = OriginLog(1)
    log.append([Entry(b"k" * 100, b"") for _ in range(10)])

    assert len(log.after(0, 1)) == 1
    assert len(log.after(0, 3 * 116)) == 3


def test_clock_skew_a_restarted_replicant_keeps_the_routes_of_its_new_clients() -> None:
    """The case of seed 002: the old incarnation is declared dead late, after clients have come to the new one."""
    cluster = RlogCluster(1, cores=2, replicants=1)
    cluster.nodes["edge0"].write(put("old"))
    cluster.network.run()

    cluster.kill("edge0")
    again = cluster.start("edge0", is_core=False)
    again.write(put("new"))
    cluster.network.run()

    cluster.check_converged()
    assert keys_of(cluster.nodes["core0"].tables, "edge0") == {"new"}


def test_a_thousand_replicas_follow_one_core() -> None:
    cluster = RlogCluster(2, cores=1, replicants=1000)
    cluster.network.run()

    for number in range(3):
        cluster.nodes[f"edge{number}"].write(put("t/1", "t/2"))
        cluster.nodes["core0"].write(put(f"c/{number}"))
    cluster.network.run()

    cluster.check_converged()
