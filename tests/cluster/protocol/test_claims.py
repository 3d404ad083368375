"""Claims of client ids: what is granted when, over nodes that hang up, overtake, die and come back (C12, C16, C17, C30)."""

from __future__ import annotations

import pytest

from braidmq.cluster.protocol.claims import (
    Action,
    ClaimGranted,
    ClaimRejected,
    ClaimRequest,
    Declaration,
    Ended,
    Ending,
    HomeClaims,
    LetGo,
    Owner,
    OwnerRestored,
)
from braidmq.cluster.protocol.node_claims import NodeClaims


class Clock:
    """Microseconds that stand still, as fast computers see them."""

    now = 1000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def home() -> HomeClaims[str]:
    return HomeClaims(2.0, Clock())


def kinds(actions: list[Action[str]]) -> list[type]:
    return [type(action) for action in actions]


def test_a_free_client_id_is_granted_at_once(home: HomeClaims[str]) -> None:
    claim = ClaimRequest(1, "c", 1)

    assert home.claim("r1", claim, 0.0) == [ClaimGranted("r1", claim, 1000)]
    assert home.owner("c") == Owner("r1", 1, 1000)
    assert home.client_of("r1", 1) == "c"


def test_a_takeover_waits_for_the_release_and_says_how_the_old_channel_ended(home: HomeClaims[str]) -> None:
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)
    second = ClaimRequest(1, "c", 1)

    assert home.claim("r2", second, 0.0) == [LetGo("r1", "c", 1001)]
    assert home.release("r1", 1, Ending.DISCARD) == [
        Ended("c", Owner("r1", 1, 1000), Ending.DISCARD),
        ClaimGranted("r2", second, 1001),
    ]


def test_what_the_old_channel_sent_before_its_release_still_counts(home: HomeClaims[str]) -> None:
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)
    home.claim("r2", ClaimRequest(1, "c", 1), 0.0)

    assert home.client_of("r1", 1) == "c"
    assert home.client_of("r2", 1) is None


def test_a_stuck_owner_is_fenced_when_its_time_is_over(home: HomeClaims[str]) -> None:
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)
    home.claim("r2", ClaimRequest(1, "c", 1), 0.0)
    assert home.next_due == 2.0

    assert home.expire(1.9) == []
    assert kinds(home.expire(2.0)) == [Ended, ClaimGranted]
    assert home.client_of("r1", 1) is None
    assert home.release("r1", 1, Ending.PUBLISH) == []


def test_a_fenced_node_that_connects_again_is_told_to_let_go_once_more(home: HomeClaims[str]) -> None:
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)
    home.claim("r2", ClaimRequest(1, "c", 1), 0.0)
    home.expire(2.0)

    assert home.connected("r1") == [LetGo("r1", "c", 1001)]
    home.release("r1", 1, Ending.TAKEN)
    assert home.connected("r1") == []


def test_a_newer_claim_ends_the_one_that_waits(home: HomeClaims[str]) -> None:
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)
    second, third = ClaimRequest(1, "c", 1), ClaimRequest(1, "c", 1)
    home.claim("r2", second, 0.0)

    assert home.claim("r3", third, 1.0) == [ClaimRejected("r2", second), LetGo("r1", "c", 1002)]
    assert home.next_due == 2.0, "the owner has had its time since the first claim"
    assert home.release("r1", 1, Ending.TAKEN)[1:] == [ClaimGranted("r3", third, 1002)]


def test_a_death_ends_what_the_node_had_and_grants_what_waited(home: HomeClaims[str]) -> None:
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)
    home.claim("r1", ClaimRequest(2, "d", 2), 0.0)
    waiting = ClaimRequest(1, "c", 1)
    home.claim("r2", waiting, 0.0)

    actions = home.dead("r1", 0.0)

    assert actions == [
        Ended("c", Owner("r1", 1, 1000), Ending.DIED),
        ClaimGranted("r2", waiting, 1001),
        Ended("d", Owner("r1", 2, 1000), Ending.DIED),
    ]


def test_c17_a_claim_that_is_withdrawn_while_it_waits_is_forgotten(home: HomeClaims[str]) -> None:
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)
    second = ClaimRequest(1, "c", 1)
    home.claim("r2", second, 0.0)

    assert home.withdraw("r2", second) == []
    assert kinds(home.release("r1", 1, Ending.PUBLISH)) == [Ended]


def test_c17_a_grant_that_no_client_takes_is_withdrawn(home: HomeClaims[str]) -> None:
    claim = ClaimRequest(1, "c", 1)
    home.claim("r1", claim, 0.0)

    assert home.withdraw("r1", claim) == [Ended("c", Owner("r1", 1, 1000), Ending.WITHDRAWN)]


def test_c17_a_withdrawal_that_overtakes_its_claim_cancels_it(home: HomeClaims[str]) -> None:
    claim = ClaimRequest(1, "c", 1)
    home.withdraw("r1", claim)

    assert home.claim("r1", claim, 0.0) == []
    assert home.owner("c") is None


def test_c17_a_grant_on_its_way_is_void_once_the_node_was_told_to_let_go() -> None:
    node = NodeClaims()
    claim = node.claim("c")

    assert node.on_let_go("c", 7) == []  # it overtook the grant
    assert not node.on_granted(claim, 6)
    assert node.hang_up(claim.channel) is None  # a release, since it was granted


def test_c17_a_claim_that_is_granted_after_the_let_go_of_an_older_channel_stands() -> None:
    node = NodeClaims()
    old, new = node.claim("c"), node.claim("c")
    node.on_granted(old, 5)

    assert node.on_let_go("c", 7) == [old.channel]
    assert node.on_granted(new, 7)


def test_a_claim_that_is_repeated_gets_the_same_answer(home: HomeClaims[str]) -> None:
    first, second = ClaimRequest(1, "c", 1), ClaimRequest(1, "c", 1)
    home.claim("r1", first, 0.0)
    home.claim("r2", second, 0.0)

    assert home.claim("r1", first, 0.0) == [ClaimGranted("r1", first, 1000)]
    assert home.claim("r2", second, 0.0) == []


def test_a_claim_that_was_rejected_cannot_come_back_and_end_a_newer_one(home: HomeClaims[str]) -> None:
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)
    second = ClaimRequest(1, "c", 1)
    home.claim("r2", second, 0.0)
    home.claim("r3", ClaimRequest(1, "c", 1), 0.0)

    assert home.claim("r2", second, 0.0) == [ClaimRejected("r2", second)]


def test_c16_a_home_that_has_restarted_grants_nothing_before_all_nodes_have_declared() -> None:
    home: HomeClaims[str] = HomeClaims(2.0, Clock(), ["r1", "r2"])
    claim = ClaimRequest(5, "c", 5)

    assert home.declare("r2", Declaration([], [], 4), 0.0) == []
    assert home.claim("r2", claim, 0.0) == []
    was_ready = home.is_ready
    actions = home.declare("r1", Declaration([("c", 3, 900)], [], 3), 0.0)

    assert (was_ready, home.is_ready) == (False, True)
    assert actions == [OwnerRestored("c", Owner("r1", 3, 900)), LetGo("r1", "c", 1000)]


def test_c16_of_two_channels_the_one_with_the_higher_guard_stays() -> None:
    home: HomeClaims[str] = HomeClaims(2.0, Clock(), ["r1", "r2"])

    home.declare("r1", Declaration([("c", 1, 500)], [], 1), 0.0)
    actions = home.declare("r2", Declaration([("c", 1, 700)], [], 1), 0.0)

    assert actions == [
        Ended("c", Owner("r1", 1, 500), Ending.TAKEN),
        LetGo("r1", "c", 700),
        OwnerRestored("c", Owner("r2", 1, 700)),
    ]


def test_c16_a_channel_that_is_declared_late_loses_against_one_granted_since() -> None:
    home: HomeClaims[str] = HomeClaims(2.0, Clock(), ["r1", "r2"])
    home.declare("r2", Declaration([], [], 0), 0.0)
    home.silent("r1", 0.0)
    home.claim("r2", ClaimRequest(1, "c", 1), 0.0)

    actions = home.declare("r1", Declaration([("c", 9, 500)], [], 9), 0.0)

    assert actions == [LetGo("r1", "c", 1000)]
    assert home.client_of("r1", 9) is None


def test_c16_a_dead_node_is_not_waited_for() -> None:
    home: HomeClaims[str] = HomeClaims(2.0, Clock(), ["r1"])
    claim = ClaimRequest(1, "c", 1)
    home.claim("r2", claim, 0.0)

    assert home.dead("r1", 0.0) == [ClaimGranted("r2", claim, 1000)]


def test_a_declaration_names_unreleased_channels_and_open_claims() -> None:
    node = NodeClaims()
    granted, released, open_, withdrawn = (node.claim(name) for name in "abcd")
    node.on_granted(granted, 5)
    node.on_granted(released, 6)
    node.hang_up(released.channel)
    node.hang_up(withdrawn.channel)

    assert node.declaration() == Declaration([("a", 1, 5), ("b", 2, 6)], [open_], 4)
    node.on_released(released.channel)
    assert node.declaration().channels == [("a", 1, 5)]


def test_released_client_ids_take_no_memory(home: HomeClaims[str]) -> None:
    clock = Clock()
    home = HomeClaims(2.0, clock)
    for number in range(1, 100):
        clock.now += 10
        home.claim("r1", ClaimRequest(number, f"c{number}", number), 0.0)
        clock.now += 10
        home.release("r1", number, Ending.DISCARD)

    assert home._guards == {}
    assert home._channels == {"r1": {}}
