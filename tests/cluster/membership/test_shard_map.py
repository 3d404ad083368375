"""The shards of a cluster: dealt once, and led under a new term at every start of a core."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import ConfigError, Corruption
from braidmq.cluster.corestore.contract import CoreRow
from braidmq.cluster.membership.cluster_tables import ClusterTables
from braidmq.cluster.membership.shard_map import MapRow, check_map, deal, decode_map, next_version
from tests.support.fakes.core_store import FakeCoreStore

LOG_ID = b"l" * 16
MAP = deal(LOG_ID, ["core3", "core1", "core2"], 12)


def test_shards_go_round_the_cores_by_name() -> None:
    assert MAP.cores == ["core1", "core2", "core3"]
    assert MAP.led_by("core2") == [1, 4, 7, 10]
    assert MAP.leader_of(11) == "core3"


@given(st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=20), st.integers(1, 300))
def test_every_shard_has_one_leader_and_no_core_has_many_more_than_another(cores: set[str], shards: int) -> None:
    found = deal(LOG_ID, cores, shards)

    led = {core: found.led_by(core) for core in cores}

    assert sorted(shard for each in led.values() for shard in each) == list(range(shards))
    assert max(map(len, led.values())) - min(map(len, led.values())) <= 1
    assert all(found.leader_of(shard) == core for core, each in led.items() for shard in each)


@pytest.mark.parametrize(
    ("name", "initial", "shards", "key"),
    [
        ("core4", (), None, "node.name"),
        ("core1", ("core1", "core2"), None, "cluster.initial_cores"),
        ("core1", (), 4, "history.shards"),
    ],
)
def test_a_core_that_is_configured_for_another_cluster_is_refused(
    name: str, initial: tuple[str, ...], shards: int | None, key: str
) -> None:
    with pytest.raises(ConfigError, match=key):
        check_map(MAP, name, initial, shards)


def test_a_core_of_the_cluster_is_accepted_whatever_order_its_cores_are_given_in() -> None:
    check_map(MAP, "core1", ("core2", "core3", "core1"), 12)
    check_map(MAP, "core1", (), None)


def test_an_invalid_map_is_not_used() -> None:
    for bad in (b"x", msgspec.msgpack.encode(MapRow(LOG_ID, ["core1"], [0, 1])), msgspec.msgpack.encode(MapRow(LOG_ID, [], []))):
        with pytest.raises(Corruption):
            decode_map(CoreRow(bad, 1))


def test_a_cluster_is_created_once() -> None:
    async def scenario() -> None:
        tables = ClusterTables(FakeCoreStore())
        assert await tables.find_map() is None

        proposals = [MAP, deal(b"m" * 16, ["other"], 4), deal(b"n" * 16, ["x"], 4)]
        found = await asyncio.gather(*(tables.create(each, 1) for each in proposals))

        assert found == [MAP, MAP, MAP]
        assert await tables.find_map() == MAP

    asyncio.run(scenario())


def test_every_start_takes_a_new_term_for_each_of_its_shards_only() -> None:
    async def scenario() -> None:
        tables = ClusterTables(FakeCoreStore())
        shards = range(250)  # more than one commit holds

        first = await tables.take_terms(shards, "core1", 7, {})
        second = await tables.take_terms([1, 4], "core1", 8, {})
        third = await tables.take_terms([1], "core1", 9, {})

        assert {term.term for term in first.values()} == {1}
        assert sorted(first) == list(shards)
        assert {shard: (term.term, term.incarnation) for shard, term in second.items()} == {1: (2, 8), 4: (2, 8)}
        assert third[1].term == 3

    asyncio.run(scenario())


def test_a_term_that_the_tables_have_forgotten_is_not_taken_again() -> None:
    async def scenario() -> None:
        tables = ClusterTables(FakeCoreStore())

        terms = await tables.take_terms([1, 4], "core1", 7, {1: 5})

        assert {shard: term.term for shard, term in terms.items()} == {1: 6, 4: 1}

    asyncio.run(scenario())


def test_two_starts_at_once_take_different_terms() -> None:
    async def scenario() -> None:
        tables = ClusterTables(FakeCoreStore())

        found = await asyncio.gather(*(tables.take_terms([1], "core1", number, {}) for number in range(10)))

        assert sorted(each[1].term for each in found) == list(range(1, 11))

    asyncio.run(scenario())


@given(st.integers(1, 5), st.lists(st.integers(1, 5), max_size=5))
def test_the_version_of_a_cluster_rises_to_what_all_understand_and_never_falls(current: int, versions: list[int]) -> None:
    found = next_version(current, versions)

    assert found >= current
    assert found == current or all(version >= found for version in versions)
    assert not versions or found >= min(versions)
