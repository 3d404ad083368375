"""The tables of a single node move to etcd: whatever fails in between, they are there once, as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from braidmq.access.bans import Ban
from braidmq.base.errors import ConfigError, Unavailable, UsageError
from braidmq.cluster.corestore.contract import Condition, PutRow, RowWrite
from braidmq.cluster.membership.administration_rows import AdministrationTables
from braidmq.cluster.membership.cluster_tables import ClusterTables
from braidmq.cluster.membership.cluster_view import LISTED
from braidmq.cluster.membership.members import Members, RegistrationRequest
from braidmq.cluster.membership.moving import MOVED_KEY, MOVING_KEY, MoveResult, check_not_moved, move_tables
from braidmq.cluster.membership.shard_map import CLUSTER, deal
from tests.support.fakes.core_store import FakeCoreStore

MAP = deal(b"l" * 16, ["core1"], 4)
OTHER = deal(b"o" * 16, ["core1"], 4)


class Failing(FakeCoreStore):
    """Its commit with this number fails: before it was carried out, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.is_carried_out = False

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        self.left -= 1
        if self.left == 0 and not self.is_carried_out:
            raise Unavailable("it does not answer")
        done = await super().commit(conditions, writes)
        if self.left == 0:
            raise Unavailable("its answer is lost")
        return done


async def single_node(bans: int = 250) -> FakeCoreStore:
    """The tables of a node with replicants, settings and bans."""
    store = FakeCoreStore()
    members = Members(store, lambda: 1_000)
    await members.register(RegistrationRequest("core1", b"k", "core"))
    await members.register(RegistrationRequest("r1", b"r", "replicant"))
    await members.register_endpoint("10.0.0.9:1883")
    tables = AdministrationTables(store)
    await tables.adopt({"a": 1}, [Ban(client_id=f"c{number}", since=1.0) for number in range(bans)])
    return store


async def content(store: FakeCoreStore) -> dict[str, dict[bytes, bytes]]:
    return {table: {key: row.value for key, row in (await store.list_rows(table)).rows.items()} for table in LISTED}


def test_everything_is_there_after_the_move_and_the_node_refuses_its_own_tables() -> None:
    async def work() -> None:
        source, target = await single_node(), FakeCoreStore()
        await check_not_moved(source)

        moved = await move_tables(source, target, MAP, 1)

        found, wanted = await content(target), await content(source)
        assert {table: rows for table, rows in found.items() if table != CLUSTER} == {
            table: rows for table, rows in wanted.items() if table != CLUSTER
        }
        assert sorted(found[CLUSTER]) == [b"map", b"version"]
        assert await ClusterTables(target).find_map() == MAP
        assert moved.rows == sum(map(len, found.values()))
        with pytest.raises(ConfigError, match="were moved to etcd"):
            await check_not_moved(source)
        assert await move_tables(source, target, MAP, 1) == MoveResult(0)

    asyncio.run(work())


@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_crash_at_any_commit_is_followed_by_the_same_result(is_carried_out: bool) -> None:
    async def work() -> None:
        plain = FakeCoreStore()
        await move_tables(await single_node(), plain, MAP, 1)
        commits = len(plain.commits)
        assert commits >= 4
        for number in range(1, commits + 1):
            source, target = await single_node(), Failing()
            target.left, target.is_carried_out = number, is_carried_out
            with pytest.raises(Unavailable):
                await move_tables(source, target, MAP, 1)
            # In between, the node is started with its own tables: they are not marked yet.
            await check_not_moved(source)
            await AdministrationTables(source).lift_ban(Ban(client_id="c7", since=0.0))
            await AdministrationTables(source).put_ban(Ban(client_id="new", since=2.0))

            await move_tables(source, target, MAP, 1)

            found, wanted = await content(target), await content(source)
            del wanted[CLUSTER][MOVED_KEY]
            wanted[CLUSTER] = {key: found[CLUSTER][key] for key in (b"map", b"version")}
            assert found == wanted, number

    asyncio.run(work())


def test_a_cluster_that_exists_is_left_alone() -> None:
    async def work() -> None:
        source, target = await single_node(0), FakeCoreStore()
        await ClusterTables(target).create(OTHER, 1)
        before = await content(target)

        with pytest.raises(UsageError, match="etcd has this cluster already"):
            await move_tables(source, target, MAP, 1)

        assert await content(target) == before
        await check_not_moved(source)

    asyncio.run(work())


def test_two_nodes_that_move_at_once_do_not_mix() -> None:
    async def work() -> None:
        source, target = await single_node(0), FakeCoreStore()
        await target.commit([], [PutRow(CLUSTER, MOVING_KEY, OTHER.log_id)])

        with pytest.raises(UsageError, match="another node has begun"):
            await move_tables(source, target, MAP, 1)
        assert len(target.commits) == 1

    asyncio.run(work())


def test_nothing_is_written_once_a_core_has_been_started_there() -> None:
    async def work() -> None:
        source, target = await single_node(), FakeCoreStore()
        await move_tables(source, target, MAP, 1)
        await ClusterTables(target).take_terms(range(4), "core1", 5, {})
        await AdministrationTables(target).put_ban(Ban(client_id="later", since=3.0))
        before = await content(target)

        assert await move_tables(source, target, MAP, 1) == MoveResult(0, is_in_use=True)
        assert await content(target) == before

    asyncio.run(work())


def test_a_node_that_moved_under_a_wrong_name_can_move_again_until_it_is_started() -> None:
    async def work() -> None:
        source, target = await single_node(0), FakeCoreStore()
        await move_tables(source, target, deal(b"l" * 16, ["wrong"], 4), 1)

        await move_tables(source, target, MAP, 1)
        assert await ClusterTables(target).find_map() == MAP

        await ClusterTables(target).take_terms(range(4), "core1", 5, {})
        with pytest.raises(UsageError, match="with the cores core1"):
            await move_tables(source, target, deal(b"l" * 16, ["wrong"], 4), 1)

    asyncio.run(work())
