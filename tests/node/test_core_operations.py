"""What an operator sees and does on a core: the clients of its replicants included."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from braidmq.base.config import sources
from braidmq.base.errors import UsageError
from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
from braidmq.control.cluster import DrainRequest
from braidmq.control.contract import BanInfo, PageRequest, TraceKind
from braidmq.mqtt.packets import MQTT311, Disconnect
from braidmq.operations import ReplicantOperations, node_traces
from tests.node.core_cluster import ALL, Cluster, in_cluster
from tests.support.clients.wire import Wire
from tests.support.joined import joined, port_of


def test_lists_cover_the_clients_of_all_nodes(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.core, "a", "x", "y")
        await cluster.connect(cluster.replicant, "b", "x", expiry=100)
        operations = cluster.operations

        clients = await operations.clients(ALL)
        sessions = await operations.sessions(ALL)
        subscriptions = await operations.subscriptions(ALL)
        topics = await operations.topics(ALL)
        first = await operations.clients(PageRequest(limit=1))
        second = await operations.clients(PageRequest(limit=1, cursor=first.cursor))

        assert [each.client_id for each in clients.items] == ["a", "b"]
        assert [(each.client_id, each.durable) for each in sessions.items] == [("a", False), ("b", True)]
        assert [(each.client_id, each.topic_filter) for each in subscriptions.items] == [("a", "x"), ("a", "y"), ("b", "x")]
        assert [(each.topic_filter, each.subscribers) for each in topics.items] == [("x", 2), ("y", 1)]
        assert [each.client_id for each in first.items + second.items] == ["a", "b"]
        assert second.cursor == ""
        assert clients.silent == {}

    in_cluster(tmp_path, scenario)


def test_one_client_is_found_on_its_node(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.replicant, "b", "x", expiry=100)

        client = await cluster.operations.client("b")
        session = await cluster.operations.session("b")
        only = await cluster.operations.subscriptions(ALL, "b")

        assert client is not None
        assert client.client.connected
        assert [each.topic_filter for each in client.subscriptions] == ["x"]
        assert session is not None
        assert session.session.durable
        assert [each.client_id for each in only.items] == ["b"]
        assert await cluster.operations.client("nobody") is None

    in_cluster(tmp_path, scenario)


@pytest.mark.parametrize("expiry", [0, 1000])
def test_kick_finds_the_node_and_ends_the_session(tmp_path: Path, expiry: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        wire = await cluster.connect(cluster.replicant, "b", "x", expiry=expiry)

        assert await cluster.operations.kick("b")

        left = await asyncio.to_thread(wire.receive, Disconnect)
        assert left.reason == 0x98
        assert await cluster.operations.session("b") is None
        assert not await cluster.operations.kick("b")

    in_cluster(tmp_path, scenario)


def test_a_session_without_a_client_is_the_cores(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        wire = await cluster.connect(cluster.replicant, "b", "x", expiry=1000)
        wire.close()
        await cluster.core.registry.wait_left("b")
        session = await cluster.operations.session("b")
        assert session is not None
        assert not session.session.connected
        assert await cluster.operations.kick("b")
        assert await cluster.operations.session("b") is None

    in_cluster(tmp_path, scenario)


def test_the_status_sums_up_and_names_the_nodes(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.core, "a", "x")
        await cluster.connect(cluster.replicant, "b", "x", "y", expiry=100)

        found = await cluster.operations.overview()

        assert (found.connections, found.sessions, found.subscriptions) == (2, 2, 3)
        assert [(each.name, each.role, each.connections, each.trouble) for each in found.nodes] == [("r1", "replicant", 1, "")]

    in_cluster(tmp_path, scenario)


def test_a_node_that_does_not_answer_is_named_within_about_a_second(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.core, "a")
        cluster.hang()
        began = time.monotonic()

        status, metrics = await asyncio.gather(cluster.operations.overview(), cluster.operations.all_metrics())
        took = time.monotonic() - began

        assert 1 <= took < 3
        assert status.connections == 1
        [node] = status.nodes
        assert "did not answer within 1 s" in node.trouble
        assert [(each.node, each.values) for each in metrics.nodes] == [("r1", None)]
        assert cluster.operations.metrics()["nodes_silent_count"] == 1
        [core, member] = (await cluster.operations.cluster()).members
        assert (core.state, member.state, member.clients) == ("serving", "silent", None)

    in_cluster(tmp_path, scenario)


def test_each_node_has_its_own_metrics_and_the_core_counts_what_it_does_for_them(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        wire = await cluster.connect(cluster.replicant, "b", "x")
        await cluster.connect(cluster.core, "c", "y", "z")
        again = await cluster.connect(cluster.replicant, "b", "x")
        await asyncio.to_thread(wire.receive, Disconnect)
        await asyncio.to_thread(again.publish, "y", b"m", 1)

        found = await cluster.operations.all_metrics()

        [node] = found.nodes
        assert node.values is not None
        assert node.values["client_connected"] == 2
        assert found.totals["client_connected"] == 1, "a replicant is a target of its own"
        assert (node.values["routes_own_count"], node.values["routes_remote_count"]) == (1, 2)
        totals = found.totals
        assert (totals["routes_own_count"], totals["routes_remote_count"]) == (2, 1)
        assert (totals["nodes_count"], totals["nodes_replicants_count"], totals["nodes_away_count"]) == (2, 1, 0)
        assert (totals["claims_granted"], totals["claims_taken_over"], totals["claims_fenced"]) == (2, 1, 0)
        assert (totals["feeds_following_count"], totals["feeds_behind_count"]) == (1, 0)
        assert totals["sessions_on_nodes_count"] == 1

    in_cluster(tmp_path, scenario)


def test_the_members_are_listed_with_what_the_core_knows_of_them(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.replicant, "b", "x")

        found = await cluster.operations.cluster()

        core, member = found.members
        assert (core.name, core.role, core.address) == ("core1", "core", str(cluster.core.cluster_address))
        assert (member.name, member.role, member.state, member.clients) == ("r1", "replicant", "serving", 1)
        assert (member.feed, member.rlog, member.routes, member.alarms) == ("following", "normal", 1, [])
        assert member.address.startswith("127.0.0.1:")
        assert member.incarnation > 0

    in_cluster(tmp_path, scenario)


def test_only_a_node_that_does_not_answer_is_forgotten(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.replicant, "b", "x", expiry=100)
        operations = cluster.operations
        with pytest.raises(UsageError, match="answers"):
            await operations.forget("r1")
        with pytest.raises(UsageError, match="no node 'r2'"):
            await operations.forget("r2")
        cluster.hang()

        await operations.forget("r1")

        assert [each.name for each in (await operations.cluster()).members] == ["core1"]
        assert await cluster.replicant.wait_ended() == "this node was declared dead"
        session = await operations.session("b")
        assert session is not None
        assert not session.session.connected

    in_cluster(tmp_path, scenario)


@pytest.mark.parametrize("ban", [BanInfo(kind="client", value="b"), BanInfo(kind="address", value="127.0.0.0/8")])
def test_a_ban_closes_clients_on_all_nodes_and_keeps_them_out(tmp_path: Path, ban: BanInfo) -> None:
    async def scenario(cluster: Cluster) -> None:
        wire = await cluster.connect(cluster.replicant, "b")

        assert await cluster.operations.ban_add(ban) == []

        left = await asyncio.to_thread(wire.receive, Disconnect)
        assert left.reason == 0x87
        assert await cluster.refusal(cluster.replicant, "b") == 0x8A

        assert await cluster.operations.ban_remove(ban.kind, ban.value)
        assert await cluster.core.administration.wait_bans_known(20) == []
        await cluster.connect(cluster.replicant, "b")

    in_cluster(tmp_path, scenario)


def test_the_home_refuses_a_client_whose_ban_its_node_does_not_know(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.hang()
        assert await cluster.operations.ban_add(BanInfo(kind="address", value="127.0.0.1")) == ["r1"]

        assert await cluster.refusal(cluster.replicant, "b") == 0x8A

    in_cluster(tmp_path, scenario)


def test_a_node_that_joins_has_the_bans_of_before(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        for number in range(8):
            await cluster.operations.ban_add(BanInfo(kind="client", value=f"b{number}" + "x" * 60_000))

        async with joined(tmp_path, cluster.core, "r2") as late:
            assert await cluster.core.administration.wait_bans_known(20) == []

            assert len(late.access.bans) == 8

    in_cluster(tmp_path, scenario)


def test_bans_are_set_on_the_core_only(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        operations = ReplicantOperations(cluster.replicant)
        with pytest.raises(UsageError, match="on the core"):
            await operations.ban_add(BanInfo(kind="client", value="b"))
        with pytest.raises(UsageError, match="on the core"):
            await operations.ban_remove("client", "b")

    in_cluster(tmp_path, scenario)


def test_a_drained_node_sends_its_clients_to_others(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        new = await cluster.connect(cluster.replicant, "b", "x", expiry=100)
        old = await cluster.connect(cluster.replicant, "c", version=MQTT311)
        waiting = Wire("127.0.0.1", port_of(cluster.replicant))  # it has not sent its CONNECT
        port = port_of(cluster.replicant)

        begun = await cluster.operations.drain(DrainRequest(node="r1", rate=1000))
        await cluster.replicant.drain.wait_done()
        ended = await cluster.operations.drain_status("r1")

        left = await asyncio.to_thread(new.receive, Disconnect)
        assert (left.reason, left.properties.server_reference) == (0x9C, "mqtt.example.com:1883")
        await asyncio.to_thread(old.expect_closed)
        await asyncio.to_thread(waiting.expect_closed)
        assert (begun.is_done, ended.is_done, ended.moved, ended.left) == (False, True, 2, 0)
        with pytest.raises(ConnectionRefusedError):
            Wire("127.0.0.1", port)
        [node] = (await cluster.operations.overview()).nodes
        assert "drained" in node.trouble
        await cluster.connect(cluster.core, "b", expiry=100)

    in_cluster(tmp_path, scenario, server_reference="mqtt.example.com:1883")


def test_a_drain_keeps_to_its_rate_and_its_deadline(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        for number in range(5):
            await cluster.connect(cluster.replicant, f"c{number}")
        operations = ReplicantOperations(cluster.replicant)

        begun = time.monotonic()
        await operations.drain(DrainRequest(rate=1, deadline_s=2.5))
        await cluster.replicant.drain.wait_done()
        took = time.monotonic() - begun

        assert 2.4 <= took < 5, "five seconds without the deadline"
        assert (await operations.drain_status("")).moved == 5

    in_cluster(tmp_path, scenario)


def test_only_workers_and_replicants_are_drained(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(UsageError, match="not a worker or replicant"):
            await cluster.operations.drain(DrainRequest())
        with pytest.raises(UsageError, match="no node 'r9'"):
            await cluster.operations.drain(DrainRequest(node="r9"))
        with pytest.raises(UsageError, match="not being drained"):
            await cluster.operations.drain_status("r1")

    in_cluster(tmp_path, scenario)


@pytest.mark.parametrize(("kind", "value"), [("client", "b"), ("topic", "x/#")])
def test_a_trace_follows_clients_and_topics_on_all_nodes(tmp_path: Path, kind: TraceKind, value: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = await cluster.connect(cluster.replicant, "b")
        traces = cluster.replicant.answers.traces
        lines = cluster.operations.trace(kind, value)
        first = asyncio.ensure_future(anext(lines))
        async with asyncio.timeout(20):
            while not traces:  # the core has asked the node
                await asyncio.to_thread(client.ping)
            await asyncio.to_thread(client.publish, "x/y", b"m", 1)

            line = await first
            while "PUBLISH" not in line:
                line = await anext(lines)

        assert line.startswith("r1: ") or (kind == "topic" and line.startswith("core1: "))
        await lines.aclose()  # type: ignore[attr-defined]

    in_cluster(tmp_path, scenario)


def test_a_trace_that_nobody_reads_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_traces, "IDLE_S", 0.01)
    monkeypatch.setattr(node_traces, "WAIT_S", 0.01)

    async def scenario(cluster: Cluster) -> None:
        ended = asyncio.Event()

        async def follow(kind: TraceKind, value: str) -> AsyncIterator[str]:
            try:
                await asyncio.Event().wait()
                yield ""
            finally:
                ended.set()

        traces = node_traces.NodeTraces(follow)
        number = traces.open(node_traces.TraceRequest("client", "b"))
        assert await traces.read(number) == []

        await asyncio.wait_for(ended.wait(), 20)
        assert len(traces) == 0
        with pytest.raises(UsageError, match="has ended"):
            await traces.read(number)

    in_cluster(tmp_path, scenario)


def test_nodes_that_are_refused_are_counted_by_reason(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        address = str(cluster.core.cluster_address)
        settings = sources.from_tables(
            {"node": {"role": "replicant", "name": "r2"}, "cluster": {"core_nodes": [address]}}
        ).settings
        stranger = ReplicantSide(settings, tmp_path, CoreAddress(b"another secret", addresses=(address,)))
        starting = asyncio.ensure_future(stranger.start())
        async with asyncio.timeout(20):
            while "secrets differ" not in stranger.state:
                await asyncio.to_thread(Wire("127.0.0.1", port_of(cluster.core)).close)
        starting.cancel()
        await stranger.stop()

        found = cluster.operations.metrics()

        assert found["cluster_connections_refused"] == found["cluster_connections_refused_by_node"] >= 1
        assert found["nodes_count"] == 2

    in_cluster(tmp_path, scenario)


def test_a_replicant_shows_its_own_sessions_and_says_who_has_retained_messages(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.connect(cluster.core, "a")
        await cluster.connect(cluster.replicant, "b", "x", expiry=100)
        operations = ReplicantOperations(cluster.replicant)

        sessions = await operations.sessions(ALL)
        session = await operations.session("b")

        assert [(each.client_id, each.durable) for each in sessions.items] == [("b", True)]
        assert session is not None
        assert [each.topic_filter for each in session.subscriptions] == ["x"]
        with pytest.raises(UsageError, match="ask its core"):
            await operations.retained(ALL)
        with pytest.raises(UsageError, match="ask its core"):
            await operations.retained_remove("x")

    in_cluster(tmp_path, scenario)
