"""Members of a cluster: incarnations, keys and deaths, by example and against a model."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from braidmq.cluster.corestore.contract import Condition, PutRow
from braidmq.cluster.membership.members import (
    DEATH_KEPT_MS,
    DEATHS,
    MEMBERS,
    Admitted,
    LiveMember,
    Members,
    NotAdmitted,
    RegistrationRequest,
)
from tests.cluster.membership.registering import NOON, Clock, ask
from tests.support.fakes.core_store import FakeCoreStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


def members_of(store: FakeCoreStore, clock: Clock) -> Members:
    return Members(store, clock)


async def admitted(members: Members, request: RegistrationRequest) -> Admitted:
    result = await members.register(request)
    assert isinstance(result, Admitted)
    return result


def test_nodes_get_numbers_in_the_order_in_which_they_register(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)

        found = [await admitted(members, ask(name, name.encode())) for name in ("r1", "r2", "r3")]

        assert [each.registration_id for each in found] == [1, 2, 3]
        assert await members.alive() == [LiveMember(f"r{number}", number, NOON, "replicant") for number in (1, 2, 3)]

    asyncio.run(scenario())


def test_an_incarnation_is_new_even_if_the_clock_goes_back(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)
        first = await admitted(members, ask())
        clock.now -= 3_600_000

        second = await admitted(members, ask())

        assert (first.incarnation, second.incarnation) == (NOON, NOON + 1)
        assert second.registration_id == first.registration_id

    asyncio.run(scenario())


def test_an_incarnation_is_new_even_if_the_tables_were_lost(clock: Clock) -> None:
    async def scenario() -> None:
        first = await admitted(members_of(FakeCoreStore(), clock), ask())
        clock.now += 1

        second = await admitted(members_of(FakeCoreStore(), clock), ask())

        assert second.incarnation > first.incarnation

    asyncio.run(scenario())


def test_the_same_key_ends_its_own_older_incarnation_at_once(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)
        first = await admitted(members, ask())

        second = await admitted(members, ask())

        assert second.ended == first.incarnation
        assert not await members.is_member("r1", first.incarnation)
        assert await members.is_member("r1", second.incarnation)

    asyncio.run(scenario())


def test_c31_another_key_is_refused_while_the_node_is_alive(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)
        first = await admitted(members, ask(key=b"one"))

        refused = await members.register(ask(key=b"two"))

        assert isinstance(refused, NotAdmitted)
        assert "'r1' is alive" in refused.reason
        assert not refused.must_restart
        assert await members.is_member("r1", first.incarnation)

        assert await members.declare_dead("r1", first.incarnation)
        successor = await admitted(members, ask(key=b"two"))
        assert successor.registration_id == 2
        assert successor.incarnation > first.incarnation
        assert isinstance(await members.register(ask(key=b"one")), NotAdmitted)

    asyncio.run(scenario())


def test_a_node_that_comes_back_keeps_its_incarnation_and_writes_nothing(clock: Clock) -> None:
    async def scenario() -> None:
        store = FakeCoreStore()
        members = members_of(store, clock)
        first = await admitted(members, ask())
        commits = len(store.commits)

        again = await admitted(members, ask(incarnation=first.incarnation))

        assert (again.registration_id, again.incarnation) == (first.registration_id, first.incarnation)
        assert len(store.commits) == commits

    asyncio.run(scenario())


def test_a_node_that_was_declared_dead_must_start_again(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)
        first = await admitted(members, ask())
        await members.declare_dead("r1", first.incarnation)

        refused = await members.register(ask(incarnation=first.incarnation))

        assert isinstance(refused, NotAdmitted)
        assert refused.must_restart
        assert (await admitted(members, ask())).incarnation > first.incarnation

    asyncio.run(scenario())


def test_a_node_that_its_own_key_has_replaced_must_start_again(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)
        first = await admitted(members, ask())
        await admitted(members, ask())

        refused = await members.register(ask(incarnation=first.incarnation))

        assert isinstance(refused, NotAdmitted)
        assert refused.must_restart

    asyncio.run(scenario())


def test_a_node_without_a_row_is_no_member(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)

        refused = await members.register(ask(incarnation=NOON))

        assert isinstance(refused, NotAdmitted)
        assert refused.must_restart
        assert not await members.is_member("r1", NOON)

    asyncio.run(scenario())


def test_tables_that_are_older_than_a_node_learn_its_incarnation(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)
        first = await admitted(members, ask())

        later = await admitted(members, ask(incarnation=first.incarnation + 5))

        assert later.incarnation == first.incarnation + 5
        assert await members.is_member("r1", first.incarnation + 5)
        assert not await members.is_member("r1", first.incarnation)

    asyncio.run(scenario())


def test_only_the_latest_incarnation_can_be_declared_dead(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)
        first = await admitted(members, ask())
        second = await admitted(members, ask())

        assert not await members.declare_dead("r1", first.incarnation)
        assert not await members.declare_dead("r2", 1)
        assert await members.is_member("r1", second.incarnation)
        assert await members.declare_dead("r1", second.incarnation)
        assert not await members.declare_dead("r1", second.incarnation)

    asyncio.run(scenario())


def test_a_node_that_was_dead_for_a_day_is_forgotten(clock: Clock) -> None:
    async def scenario() -> None:
        store = FakeCoreStore()
        members = members_of(store, clock)
        for name in ("dead", "back", "alive"):
            first = await admitted(members, ask(name, name.encode()))
            if name != "alive":
                await members.declare_dead(name, first.incarnation)
        await admitted(members, ask("back", b"back"))

        clock.now += DEATH_KEPT_MS - 1
        assert await members.sweep() == []
        clock.now += 1
        assert await members.sweep() == ["dead"]

        assert sorted((await store.list_rows(MEMBERS)).rows) == [b"alive", b"back"]
        assert sorted((await store.list_rows(DEATHS)).rows) == [b"back"]

    asyncio.run(scenario())


def test_a_registration_that_another_commit_overtakes_is_decided_again(clock: Clock) -> None:
    class Overtaken(FakeCoreStore):
        async def commit(self, conditions, writes):  # type: ignore[no-untyped-def]
            if not self.commits:
                first = PutRow("counters", b"registration_id", (41).to_bytes(8, "big"))
                assert await super().commit([Condition("counters", b"registration_id", 0)], [first]) == 1
            return await super().commit(conditions, writes)

    async def scenario() -> None:
        members = members_of(Overtaken(), clock)

        assert (await admitted(members, ask())).registration_id == 42

    asyncio.run(scenario())


def test_an_endpoint_keeps_its_registration_id(clock: Clock) -> None:
    async def scenario() -> None:
        members = members_of(FakeCoreStore(), clock)
        await admitted(members, ask())

        numbers = [await members.register_endpoint(each) for each in ("10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:1")]

        assert numbers == [2, 3, 2]
        assert (await admitted(members, ask("r2"))).registration_id == 4

    asyncio.run(scenario())


class MembersModel(RuleBasedStateMachine):
    """Random starts, returns, deaths and clocks. The model is a list of what each start was given."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.store = FakeCoreStore()
        self.members = Members(self.store, self.clock)
        self.given: set[tuple[str, int]] = set()
        self.current: dict[str, tuple[bytes, int]] = {}  # of nodes that are alive

    names = st.sampled_from(["r1", "r2"])
    keys = st.sampled_from([b"one", b"two"])

    @rule(name=names, key=keys)
    def start(self, name: str, key: bytes) -> None:
        result = asyncio.run(self.members.register(ask(name, key)))

        alive = self.current.get(name)
        if alive is not None and alive[0] != key:
            assert isinstance(result, NotAdmitted)
            return
        assert isinstance(result, Admitted)
        assert (name, result.incarnation) not in self.given, "an incarnation was given out twice"
        assert all(result.incarnation > number for each, number in self.given if each == name)
        assert result.ended == (alive[1] if alive is not None else 0)
        self.given.add((name, result.incarnation))
        self.current[name] = (key, result.incarnation)

    @rule(data=st.data(), key=keys)
    def come_back(self, data: st.DataObject, key: bytes) -> None:
        if not self.given:
            return
        name, incarnation = data.draw(st.sampled_from(sorted(self.given)))

        result = asyncio.run(self.members.register(ask(name, key, incarnation)))

        assert isinstance(result, Admitted) == (self.current.get(name) == (key, incarnation))

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        if not self.given:
            return
        name, incarnation = data.draw(st.sampled_from(sorted(self.given)))

        ended = asyncio.run(self.members.declare_dead(name, incarnation))

        assert ended == (self.current.get(name, (b"", 0))[1] == incarnation)
        if ended:
            del self.current[name]

    @rule(step_ms=st.integers(-10_000, 2 * DEATH_KEPT_MS))
    def pass_time(self, step_ms: int) -> None:
        self.clock.now += step_ms

    @rule()
    def sweep(self) -> None:
        self.clock.now = max([self.clock.now, *(number + 1 for _, number in self.given)])  # clocks are not hours behind for days
        asyncio.run(self.members.sweep())

    @invariant()
    def exactly_the_current_incarnations_are_members(self) -> None:
        alive = asyncio.run(self.members.alive())

        assert {(each.name, each.incarnation) for each in alive} == {
            (name, incarnation) for name, (_, incarnation) in self.current.items()
        }


TestMembersModel = MembersModel.TestCase
