"""A real etcd that dies, hangs, forgets, refuses and comes back from a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from time import monotonic

import pytest

from braidmq.base.errors import BraidError, ConfigError, Unavailable
from braidmq.cluster.corestore.contract import CommitsMissed, CoreCommit, CoreRow, PutRow
from braidmq.cluster.corestore.etcd.client import DEFAULT_TIMES, EtcdTimes, EtcdTls
from braidmq.cluster.corestore.etcd.failures import EtcdUser
from braidmq.cluster.corestore.etcd.identity import StoreMark, StoreRestored
from braidmq.cluster.corestore.etcd.store import EtcdCoreStore
from tests.support.certificates import Authority
from tests.support.etcd import Etcd, running_etcd
from tests.support.ports import closed_address

pytestmark = pytest.mark.needs("etcd")

HASTY = EtcdTimes(attempt_s=0.5, call_s=1.5, silence_s=0.5)  # where a member does not answer; one that is only slow may need more


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path) as running:
        yield running


def run(scenario: Callable[..., Awaitable[None]], *stores: EtcdCoreStore | Callable[[], EtcdCoreStore]) -> None:
    async def main() -> None:
        opened = [each if isinstance(each, EtcdCoreStore) else each() for each in stores]
        try:
            await asyncio.wait_for(scenario(*opened), 30)
        finally:
            for store in opened:
                await store.close()

    asyncio.run(main())


def opened(etcd: Etcd, times: EtcdTimes = DEFAULT_TIMES) -> Callable[[], EtcdCoreStore]:
    return lambda: EtcdCoreStore(etcd.addresses, "c", times=times)


def put(key: bytes, value: bytes = b"v") -> PutRow:
    return PutRow("t", key, value)


async def commit(store: EtcdCoreStore, *writes: PutRow) -> int:
    position = await store.commit([], writes)
    assert position is not None
    return position


async def commit_at_last(store: EtcdCoreStore, write: PutRow) -> None:
    """Repeat a commit that does no harm when it happens twice."""
    while True:
        try:
            await commit(store, write)
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            return


# -- members that die or hang ------------------------------------------------------------------------------------------


def test_after_a_restart_of_etcd_calls_work_and_readers_go_on(etcd: Etcd) -> None:
    async def scenario(store: EtcdCoreStore) -> None:
        first = await commit(store, put(b"a"))
        async with aclosing(store.watch(first - 1)) as watch:
            assert (await anext(watch)).position == first
            coming = asyncio.ensure_future(anext(watch))
            etcd.members[0].kill()

            with pytest.raises(Unavailable):
                await store.get("t", b"a")
            etcd.members[0].start()
            await commit_at_last(store, put(b"b"))

            assert (await coming).writes == (put(b"b"),)
            assert await store.get("t", b"a") == CoreRow(b"v", first)

    run(scenario, opened(etcd, HASTY))


def test_a_member_that_hangs_costs_no_more_than_the_deadline(etcd: Etcd) -> None:
    async def scenario(store: EtcdCoreStore) -> None:
        await commit(store, put(b"a"))
        etcd.members[0].pause()
        began = monotonic()

        with pytest.raises(Unavailable):
            await store.get("t", b"a")
        with pytest.raises(Unavailable):
            await store.renew_lease(1)
        with pytest.raises(Unavailable, match="whether the commit happened is unknown"):
            await store.commit([], [put(b"b")])

        assert monotonic() - began < 3 * HASTY.call_s
        etcd.members[0].go_on()
        await commit_at_last(store, put(b"c"))
        assert set((await store.list_rows("t")).rows) >= {b"a", b"c"}

    run(scenario, opened(etcd, HASTY))


def test_the_death_of_the_leader_of_three_interrupts_nothing_for_long(tmp_path: Path) -> None:
    with running_etcd(tmp_path, count=3) as three:

        async def scenario(store: EtcdCoreStore) -> None:
            lease = await store.grant_lease(10)
            first = await commit(store, PutRow("t", b"a", b"v", lease))
            async with aclosing(store.watch(first)) as watch:
                coming = asyncio.ensure_future(anext(watch))
                await asyncio.to_thread(lambda: three.leader().kill())
                began = monotonic()

                await commit_at_last(store, put(b"b"))
                assert (await coming).writes == (put(b"b"),)
                assert await store.renew_lease(lease)

            assert monotonic() - began < 5
            assert set((await store.list_rows("t")).rows) == {b"a", b"b"}

        run(scenario, opened(three, HASTY))


def test_a_reader_leaves_a_member_that_hangs(tmp_path: Path) -> None:
    with running_etcd(tmp_path, count=3) as three:
        leader = three.leader()
        hanging = next(member for member in three.members if member is not leader)

        async def scenario(reading: EtcdCoreStore, writing: EtcdCoreStore) -> None:
            first = await commit(writing, put(b"a"))
            async with aclosing(reading.watch(first - 1)) as watch:
                await anext(watch)
                coming = asyncio.ensure_future(anext(watch))
                hanging.pause()

                await commit(writing, put(b"b"))

                assert (await asyncio.wait_for(coming, 10)).writes == (put(b"b"),)
            hanging.go_on()

        others = [member.address for member in three.members if member is not hanging]
        run(
            scenario,
            lambda: EtcdCoreStore([hanging.address, *others], "c", times=HASTY),
            lambda: EtcdCoreStore([leader.address], "c"),
        )


def test_members_that_are_not_there_are_passed_over(etcd: Etcd) -> None:
    async def scenario(store: EtcdCoreStore) -> None:
        assert await commit(store, put(b"a"))

    run(scenario, lambda: EtcdCoreStore([closed_address(), *etcd.addresses], "c"))


# -- commits that are no longer kept -----------------------------------------------------------------------------------


def test_a_reader_that_was_away_during_a_compaction_is_told_to_list_again(etcd: Etcd) -> None:
    async def scenario(store: EtcdCoreStore) -> None:
        first = await commit(store, put(b"a"))
        async with aclosing(store.watch(first - 1)) as watch:
            assert (await anext(watch)).position == first
            etcd.members[0].kill()
            etcd.members[0].start()
            await commit_at_last(store, put(b"b"))
            last = await commit(store, put(b"c"))
            await asyncio.to_thread(etcd.compact, last)

            with pytest.raises(CommitsMissed):
                await anext(watch)

        listed = await store.list_rows("t")
        assert set(listed.rows) == {b"a", b"b", b"c"}

    run(scenario, opened(etcd))


def test_a_quiet_reader_survives_compactions_by_notes_of_progress(etcd: Etcd) -> None:
    async def scenario(store: EtcdCoreStore, other: EtcdCoreStore) -> None:
        first = await commit(store, put(b"a"))
        async with aclosing(store.watch(first)) as watch:
            coming = asyncio.ensure_future(anext(watch))
            for _ in range(5):
                position = await commit(other, put(b"x"))
            await asyncio.sleep(1.5)  # notes of progress come every second
            await asyncio.to_thread(etcd.compact, position)
            etcd.members[0].kill()
            etcd.members[0].start()

            await commit_at_last(store, put(b"b"))

            assert (await coming).writes == (put(b"b"),)

    # Without requests for a sign of life, so that only etcd's own notes count.
    patient = EtcdTimes(silence_s=60)
    run(scenario, opened(etcd, patient), lambda: EtcdCoreStore(etcd.addresses, "other"))


# -- logins and certificates -------------------------------------------------------------------------------------------


async def error_of(store: EtcdCoreStore) -> str:
    with pytest.raises(BraidError) as caught:
        await store.get("t", b"a")
    return f"{type(caught.value).__name__} {caught.value}"


def test_logins_are_needed_checked_and_renewed(etcd: Etcd) -> None:
    etcd.require_login({"braid": "right", "other": "right"}, b"braidmq/c")

    def as_user(name: str, password: str, cluster: str = "c") -> Callable[[], EtcdCoreStore]:
        return lambda: EtcdCoreStore(etcd.addresses, cluster, user=EtcdUser(name, password))

    async def scenario(right: EtcdCoreStore, wrong: EtcdCoreStore, nameless: EtcdCoreStore, elsewhere: EtcdCoreStore) -> None:
        first = await commit(right, put(b"a"))
        async with aclosing(right.watch(first - 1)) as watch:
            assert (await anext(watch)).position == first
            said = [await error_of(store) for store in (wrong, nameless, elsewhere)]
            etcd.members[0].kill()
            etcd.members[0].start()  # which has forgotten all tokens

            await commit_at_last(right, put(b"b"))

            assert (await anext(watch)).writes == (put(b"b"),)
        lease = await right.grant_lease(10)
        assert await right.renew_lease(lease)
        assert all(each.startswith("ConfigError cluster.etcd_username: ") for each in said)
        assert "does not accept the password of 'braid'" in said[0]
        assert "requires a login" in said[1]
        assert "does not let 'other' use" in said[2]
        assert "wrong" not in said[0]

    run(scenario, as_user("braid", "right"), as_user("braid", "wrong"), opened(etcd), as_user("other", "right", "d"))


def test_a_login_that_etcd_does_not_know_of_is_rejected(etcd: Etcd) -> None:
    async def scenario(store: EtcdCoreStore) -> None:
        with pytest.raises(ConfigError, match="etcd has no authentication"):
            await store.get("t", b"a")

    run(scenario, lambda: EtcdCoreStore(etcd.addresses, "c", user=EtcdUser("braid", "right")))


def test_only_an_etcd_whose_certificate_is_trusted_is_used(tmp_path: Path) -> None:
    ours, foreign = Authority(tmp_path, "ours"), Authority(tmp_path, "foreign")
    client = ours.client()
    flags = ["--client-cert-auth", f"--trusted-ca-file={ours.cert_file}"]

    def trusting(authority: Authority, shows: bool) -> EtcdTls:
        ca = Path(authority.cert_file).read_bytes()
        return EtcdTls(ca, Path(client.cert_file).read_bytes(), Path(client.key_file).read_bytes()) if shows else EtcdTls(ca)

    with running_etcd(tmp_path, server=ours.server(), flags=flags) as etcd:

        def with_tls(tls: EtcdTls | None, times: EtcdTimes = HASTY) -> Callable[[], EtcdCoreStore]:
            return lambda: EtcdCoreStore(etcd.addresses, "c", tls=tls, times=times)

        async def scenario(right: EtcdCoreStore, *wrong: EtcdCoreStore) -> None:
            assert await commit(right, put(b"a"))

            said = [await error_of(store) for store in wrong]

            assert all(each.startswith("Unavailable etcd at ") for each in said), said
            assert "cluster.etcd_ca_file" in said[0]

        wrong = (trusting(foreign, True), trusting(ours, False), None)
        run(scenario, with_tls(trusting(ours, True), DEFAULT_TIMES), *(with_tls(tls) for tls in wrong))


# -- a backup is put back (C8) -----------------------------------------------------------------------------------------


def restored(etcd: Etcd, folder: Path) -> None:
    etcd.members[0].kill()
    etcd.members[0].restore(folder)
    etcd.members[0].start()


def test_a_store_that_lost_commits_is_refused_until_the_restore_is_accepted(etcd: Etcd, tmp_path: Path) -> None:
    async def scenario(one: EtcdCoreStore, two: EtcdCoreStore) -> None:
        await commit_at_last(one, put(b"a"))
        etcd.members[0].kill()
        etcd.members[0].back_up(tmp_path / "backup")
        etcd.members[0].start()
        await commit_at_last(one, put(b"lost"))
        assert await two.get("t", b"lost") is not None
        before = one.incarnation
        watch = one.watch((await one.list_rows("t")).position)
        coming = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.1)
        restored(etcd, tmp_path / "backup")

        with pytest.raises(StoreRestored, match=r"its revision is \d+ and was \d+"):
            await one.get("t", b"a")
        with pytest.raises(StoreRestored, match="restored from a backup"):
            await one.commit([], [put(b"b")])
        with pytest.raises(StoreRestored):
            await coming
        await one.accept_restored()
        with pytest.raises(StoreRestored):
            await two.get("t", b"a")
        await two.accept_restored()

        assert one.incarnation == two.incarnation == (before[0], 1)
        assert set((await one.list_rows("t")).rows) == set((await two.list_rows("t")).rows) == {b"a"}

    run(scenario, opened(etcd), opened(etcd))


def test_a_restore_is_noticed_when_the_store_has_passed_the_same_revision_again(etcd: Etcd, tmp_path: Path) -> None:
    marks: list[StoreMark | None] = []

    async def before(store: EtcdCoreStore) -> None:
        await commit(store, put(b"a"))
        etcd.members[0].kill()
        etcd.members[0].back_up(tmp_path / "backup")
        etcd.members[0].start()
        await commit_at_last(store, put(b"b", b"lost"))
        marks.append(store.mark)

    run(before, opened(etcd))
    restored(etcd, tmp_path / "backup")

    async def after(other: EtcdCoreStore, store: EtcdCoreStore) -> None:
        for _ in range(5):
            await commit(other, put(b"b", b"new"))

        with pytest.raises(StoreRestored, match="has another content"):
            await store.get("t", b"a")

    run(after, opened(etcd), lambda: EtcdCoreStore(etcd.addresses, "c", known=marks[0]))


def test_a_restart_is_not_mistaken_for_a_restore(etcd: Etcd) -> None:
    marks: list[StoreMark | None] = []

    async def before(store: EtcdCoreStore) -> None:
        await commit(store, put(b"a"))
        marks.append(store.mark)

    run(before, opened(etcd))

    async def after(store: EtcdCoreStore, other: EtcdCoreStore) -> None:
        last = await commit(other, put(b"a", b"2"))
        assert await store.get("t", b"a") == CoreRow(b"2", last)
        await asyncio.to_thread(etcd.compact, last)
        async with aclosing(store.watch(last)) as watch:
            later = await commit(store, put(b"b"))
            assert await anext(watch) == CoreCommit(later, (put(b"b"),))

    run(after, lambda: EtcdCoreStore(etcd.addresses, "c", known=marks[0]), opened(etcd))


def test_another_etcd_is_refused(etcd: Etcd, tmp_path: Path) -> None:
    marks: list[StoreMark | None] = []

    async def learn(store: EtcdCoreStore) -> None:
        await store.get("t", b"a")
        marks.append(store.mark)

    run(learn, opened(etcd))
    (tmp_path / "second").mkdir()

    with running_etcd(tmp_path / "second") as second:

        async def scenario(store: EtcdCoreStore) -> None:
            with pytest.raises(StoreRestored, match="its cluster id is"):
                await store.get("t", b"a")

        run(scenario, lambda: EtcdCoreStore(second.addresses, "c", known=marks[0]))
