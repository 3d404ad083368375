from __future__ import annotations

from zlib import crc32

import pytest

from braidmq.cluster.eventual.cluster_lock import SELF, AskLock, ClusterLock, EndLock, LockScope, Settled

CORES = ("c1", "c2", "c3")
KEY = next(str(n) for n in range(100) if crc32(str(n).encode()) % 3 == 0)  # asked for at c1, then c2, then c3
HELD = Settled(1, is_held=True)
LOST = Settled(1, is_held=False)


def lock_of(scope: LockScope, up: tuple[str, ...] = CORES) -> ClusterLock:
    lock = ClusterLock(CORES, scope)
    for core in up:
        assert lock.up(core) == []
    return lock


def ask(core: str, number: int = 1) -> AskLock:
    return AskLock(core, number, KEY)


def test_a_local_lock_asks_no_core() -> None:
    lock = lock_of(LockScope.LOCAL, up=())

    assert lock.acquire(KEY) == (1, [ask(SELF)])
    assert lock.answered(SELF, 1, is_granted=True) == [HELD]
    assert lock.release(1) == [EndLock(SELF, 1)]
    assert len(lock) == 0


def test_the_lock_of_the_leader_takes_one_core() -> None:
    lock = lock_of(LockScope.LEADER)

    assert lock.acquire(KEY) == (1, [ask("c1")])
    assert lock.answered("c1", 1, is_granted=True) == [HELD]
    assert lock.release(1) == [EndLock("c1", 1)]


def test_a_quorum_is_more_than_half_of_all_cores_one_after_the_other() -> None:
    lock = lock_of(LockScope.QUORUM)

    assert lock.acquire(KEY) == (1, [ask("c1")])
    assert lock.answered("c1", 1, is_granted=True) == [ask("c2")]
    assert lock.answered("c2", 1, is_granted=True) == [HELD]
    assert lock.release(1) == [EndLock("c1", 1), EndLock("c2", 1)]


def test_all_cores_that_are_reached_give_out_a_lock_of_all() -> None:
    lock = lock_of(LockScope.ALL, up=("c1", "c3"))

    assert lock.acquire(KEY) == (1, [ask("c1")])
    assert lock.answered("c1", 1, is_granted=True) == [ask("c3")]
    assert lock.answered("c3", 1, is_granted=True) == [HELD]


@pytest.mark.parametrize("scope", [LockScope.LEADER, LockScope.ALL])
def test_there_is_no_lock_without_a_core(scope: LockScope) -> None:
    assert lock_of(scope, up=()).acquire(KEY) == (1, [LOST])


def test_there_is_no_quorum_of_less_than_half() -> None:
    lock = lock_of(LockScope.QUORUM, up=("c2",))

    assert lock.acquire(KEY) == (1, [ask("c2")])
    assert lock.answered("c2", 1, is_granted=True) == [EndLock("c2", 1), LOST]
    assert len(lock) == 0


def test_a_core_that_goes_away_while_it_is_asked_is_left_out() -> None:
    lock = lock_of(LockScope.QUORUM)
    lock.acquire(KEY)

    assert lock.down("c1") == [ask("c2")]
    assert lock.answered("c1", 1, is_granted=True) == [], "it answers for nobody now"
    assert lock.answered("c2", 1, is_granted=True) == [ask("c3")]
    assert lock.answered("c3", 1, is_granted=True) == [HELD]


def test_a_core_that_is_back_learns_which_locks_the_node_still_has() -> None:
    lock = lock_of(LockScope.QUORUM)
    for number in (1, 2):
        assert lock.acquire(KEY)[0] == number
        lock.answered("c1", number, is_granted=True)
        lock.answered("c2", number, is_granted=True)
    lock.down("c1")

    assert lock.release(1) == [EndLock("c2", 1)], "c1 cannot be told"
    assert lock.up("c1") == [2]


def test_a_core_without_room_ends_the_request() -> None:
    lock = lock_of(LockScope.QUORUM)
    lock.acquire(KEY)
    lock.answered("c1", 1, is_granted=True)

    assert lock.answered("c2", 1, is_granted=False) == [EndLock("c1", 1), LOST]


def test_a_request_that_is_given_up_tells_the_core_that_was_asked() -> None:
    lock = lock_of(LockScope.QUORUM)
    lock.acquire(KEY)
    lock.answered("c1", 1, is_granted=True)

    assert lock.release(1) == [EndLock("c1", 1), EndLock("c2", 1)]
    assert lock.answered("c2", 1, is_granted=True) == []
    assert lock.release(1) == []
