"""Claims of client ids: what is granted when, over nodes that hang up, overtake, die and come back (C12, C16, C17, C30).

The claims here have no versions unless a test is about them: then the one that arrives last is the newest.
"""

from __future__ import annotations

import pytest

from braidmq.cluster.registry.messages import ClaimRequest, Declaration, Ending, GrantedChannel, Outcome, Owner
from braidmq.cluster.registry.node_claims import NodeClaims
from braidmq.cluster.registry.versions import Version
from tests.support.registry import WAIT_S, Home, brief

FIRST = ClaimRequest(1, "c", 1)
THIRD_OF_R1 = GrantedChannel("c", 3, 900, Version(900, 1, 3), 5, 900, 5)


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
def taken(home: Home) -> Home:
    """A home where r1 has the client id, and r2 has claimed it: r1 was told to end its channel."""
    home.claim("r1", FIRST, 0.0)
    home.claim("r2", FIRST, 0.0)
    home.probed("r1", "c", 1, 0.0)
    return home


def test_a_free_client_id_is_granted_at_once(home: Home) -> None:
    assert brief(home.claim("r1", FIRST, 0.0)) == [("grant", "r1", 1)]
    assert home.owner("c") == Owner("r1", 1, home.clock.now)
    assert home.client_of("r1", 1) == "c"


def test_the_node_of_the_owner_is_probed_and_nothing_else_happens_to_it(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)

    assert brief(home.claim("r2", FIRST, 0.0)) == [("probe", "r1", 1)]
    assert home.registered == "r1:1"
    assert brief(home.probed("r1", "c", 1, 0.1)) == [("end", "r1", 1)]
    assert home.registered == "r2:1"


def test_a_takeover_waits_for_the_release_and_says_how_the_old_channel_ended(taken: Home) -> None:
    assert brief(taken.release("r1", 1, Ending.DISCARD)) == [("ended", "r1", 1, "discard"), ("grant", "r2", 1)]


def test_guards_rise_although_the_clock_stands_still(taken: Home) -> None:
    taken.release("r1", 1, Ending.TAKEN)

    assert taken.owner("c") == Owner("r2", 1, taken.clock.now + 1)


def test_what_the_old_channel_sent_before_its_release_still_counts(taken: Home) -> None:
    assert taken.client_of("r1", 1) == "c"
    assert taken.client_of("r2", 1) is None


def test_a_stuck_owner_is_fenced_when_its_time_is_over(taken: Home) -> None:
    assert taken.next_due == WAIT_S

    assert taken.expire(1.9) == []
    assert brief(taken.expire(2.0)) == [("ended", "r1", 1, "taken"), ("grant", "r2", 1)]
    assert taken.client_of("r1", 1) is None
    assert taken.release("r1", 1, Ending.PUBLISH) == []
    assert taken.next_due is None


def test_a_node_that_does_not_answer_the_probe_costs_the_time_once(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)
    home.claim("r2", FIRST, 0.0)

    assert brief(home.expire(2.0)) == [("end", "r1", 1), ("ended", "r1", 1, "taken"), ("grant", "r2", 1)]


def test_a_fenced_node_that_connects_again_is_told_to_end_its_channel_once_more(taken: Home) -> None:
    taken.expire(2.0)

    assert brief(taken.connected("r1")) == [("end", "r1", 1)]
    taken.release("r1", 1, Ending.TAKEN)
    assert taken.connected("r1") == []


def test_a_node_that_connects_again_is_probed_again(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)
    home.claim("r2", FIRST, 0.0)

    assert brief(home.connected("r1")) == [("probe", "r1", 1)]


def test_a_newer_claim_ends_the_one_that_waits(taken: Home) -> None:
    assert brief(taken.claim("r3", FIRST, 1.0)) == [("probe", "r2", 1)]
    assert brief(taken.probed("r2", "c", 1, 1.0)) == [("reject", "r2", 1, "expensive_fail")]
    assert taken.next_due == WAIT_S, "the owner has had its time since the first claim"
    assert brief(taken.release("r1", 1, Ending.TAKEN)) == [("ended", "r1", 1, "taken"), ("grant", "r3", 1)]


def test_a_claim_that_waits_for_the_probe_of_a_replaced_one_is_decided_with_it(home: Home) -> None:
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)
    home.probed("r1", "c", 1, 0.0)
    assert home.connect("r3", 1, 2500) == [("probe", "r2", 1)]

    assert home.connect("r2", 2, 3000) == [("reject", "r2", 1, "expensive_fail"), ("reject", "r3", 1, "expensive_fail")]
    assert home.registered == "r2:2"


def test_a_claim_that_waits_for_the_probe_of_a_withdrawn_one_is_decided_with_it(taken: Home) -> None:
    taken.claim("r3", FIRST, 1.0)

    assert taken.withdraw("r2", FIRST) == []
    assert taken.registered == "r3:1"


def test_a_claim_that_waits_for_the_probe_of_a_dead_node_is_decided_with_its_death(taken: Home) -> None:
    taken.claim("r3", FIRST, 1.0)

    assert brief(taken.dead("r2", 1.1)) == []
    assert taken.registered == "r3:1"


def test_an_owner_that_was_told_to_end_for_an_earlier_claim_is_given_up_at_its_time(taken: Home) -> None:
    taken.claim("r3", FIRST, 1.0)
    taken.probed("r2", "c", 1, 1.0)

    assert brief(taken.expire(WAIT_S)) == [("ended", "r1", 1, "taken"), ("grant", "r3", 1)]


def test_a_channel_of_the_same_node_needs_no_probe(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)

    assert brief(home.claim("r1", ClaimRequest(2, "c", 2), 0.0)) == [("end", "r1", 1)]


def test_a_death_ends_what_the_node_had_and_grants_what_waited(taken: Home) -> None:
    taken.claim("r1", ClaimRequest(2, "d", 2), 0.0)

    assert brief(taken.dead("r1", 0.0)) == [
        ("ended", "r1", 1, "died"),
        ("grant", "r2", 1),
        ("ended", "r1", 2, "died"),
    ]


def test_a_claim_whose_predecessor_dies_during_the_probe_waits_no_longer(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)
    home.claim("r2", FIRST, 0.0)

    assert brief(home.dead("r1", 0.0)) == [("ended", "r1", 1, "died"), ("grant", "r2", 1)]


def test_the_claims_of_a_dead_node_are_void(taken: Home) -> None:
    assert taken.dead("r2", 0.0) == []
    assert brief(taken.release("r1", 1, Ending.TAKEN)) == [("ended", "r1", 1, "taken")]
    assert brief(taken.claim("r3", FIRST, 0.0)) == [("grant", "r3", 1)]


def test_c17_a_claim_that_is_withdrawn_while_it_waits_is_forgotten(taken: Home) -> None:
    assert taken.withdraw("r2", FIRST) == []
    assert brief(taken.release("r1", 1, Ending.PUBLISH)) == [("ended", "r1", 1, "publish")]


def test_c17_a_claim_that_is_withdrawn_during_the_probe_is_forgotten(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)
    home.claim("r2", FIRST, 0.0)

    assert home.withdraw("r2", FIRST) == []
    assert home.probed("r1", "c", 1, 0.0) == []
    assert home.owner("c") == Owner("r1", 1, home.clock.now)


def test_c17_a_grant_that_no_client_takes_is_withdrawn(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)

    assert brief(home.withdraw("r1", FIRST)) == [("ended", "r1", 1, "withdrawn")]


def test_c17_a_withdrawal_that_overtakes_its_claim_cancels_it(home: Home) -> None:
    home.withdraw("r1", FIRST)

    assert home.claim("r1", FIRST, 0.0) == []
    assert home.owner("c") is None


def test_a_claim_that_is_repeated_gets_the_same_answer(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)
    home.claim("r2", FIRST, 0.0)

    assert brief(home.claim("r1", FIRST, 0.0)) == [("probe", "r1", 1), ("grant", "r1", 1)]
    assert home.claim("r2", FIRST, 0.0) == []
    home.probed("r1", "c", 1, 0.0)
    assert home.claim("r2", FIRST, 0.0) == []


def test_a_claim_that_was_rejected_cannot_come_back_and_end_a_newer_one(taken: Home) -> None:
    taken.claim("r3", FIRST, 0.0)
    taken.probed("r2", "c", 1, 0.0)

    assert brief(taken.claim("r2", FIRST, 0.0)) == [("reject", "r2", 1, "expensive_fail")]


def test_a_kicked_channel_leaves_and_a_newer_one_does_not(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)

    assert home.kick("c", "r2", 1, 0.0) == []
    assert brief(home.kick("c", "r1", 1, 0.0)) == [("kick", "r1", 1)]
    assert home.kick("c", "r1", 1, 0.0) == []
    assert brief(home.connected("r1")) == [("kick", "r1", 1)]
    assert brief(home.release("r1", 1, Ending.PUBLISH)) == [("ended", "r1", 1, "publish")]


def test_a_client_that_was_kicked_connects_again_without_a_probe(home: Home) -> None:
    home.claim("r1", FIRST, 0.0)
    home.kick("c", "r1", 1, 0.0)

    assert home.claim("r2", FIRST, 0.5) == [], "its old channel has not released yet"
    assert brief(home.release("r1", 1, Ending.PUBLISH)) == [("ended", "r1", 1, "publish"), ("grant", "r2", 1)]


def test_a_kick_of_a_channel_that_waits_for_its_grant_rejects_its_claim(taken: Home) -> None:
    assert brief(taken.kick("c", "r2", 1, 0.0)) == [("reject", "r2", 1, "expensive_fail")]
    assert brief(taken.release("r1", 1, Ending.TAKEN)) == [("ended", "r1", 1, "taken")]


def test_claims_that_wait_have_a_bound() -> None:
    home = Home(claims_max=2)
    home.claim("r1", FIRST, 0.0)
    for number in (1, 2):
        home.claim("r2", ClaimRequest(number, "c", number), 0.0)

    assert brief(home.claim("r2", ClaimRequest(3, "c", 3), 0.0)) == [("reject", "r2", 3, "full")]
    home.withdraw("r2", FIRST)
    assert home.claim("r2", ClaimRequest(4, "c", 4), 0.0) == []


def test_claims_that_wait_for_a_home_that_starts_have_a_bound() -> None:
    home = Home(["r1"], claims_max=1)
    home.claim("r2", FIRST, 0.0)

    assert brief(home.claim("r2", ClaimRequest(2, "d", 2), 0.0)) == [("reject", "r2", 2, "full")]


def test_c16_a_home_that_has_restarted_grants_nothing_before_all_nodes_have_declared() -> None:
    home = Home(["r1", "r2"])
    claim = ClaimRequest(5, "c", 5)

    assert home.declare("r2", Declaration([], [], 4), 0.0) == []
    assert home.claim("r2", claim, 0.0) == []
    was_ready = home.is_ready
    actions = home.declare("r1", Declaration([THIRD_OF_R1], [], 3), 0.0)

    assert (was_ready, home.is_ready) == (False, True)
    assert brief(actions) == [("restored", "r1", 3), ("probe", "r1", 3)]
    assert home.owner("c") == Owner("r1", 3, 900)


def test_c16_of_two_channels_the_one_with_the_higher_version_stays() -> None:
    home = Home(["r1", "r2"])

    home.declare("r1", Declaration([THIRD_OF_R1], [], 3), 0.0)
    higher = GrantedChannel("c", 1, 950, Version(950, 2, 1), 5, 950, 5)
    actions = home.declare("r2", Declaration([higher], [], 1), 0.0)

    assert brief(actions) == [("ended", "r1", 3, "taken"), ("end", "r1", 3), ("restored", "r2", 1)]


def test_c16_a_channel_that_is_declared_late_loses_against_one_granted_since(home: Home) -> None:
    home = Home(["r1", "r2"])
    home.declare("r2", Declaration([], [], 0), 0.0)
    home.silent("r1", 0.0)
    home.claim("r2", FIRST, 0.0)

    actions = home.declare("r1", Declaration([THIRD_OF_R1], [], 9), 0.0)

    assert brief(actions) == [("end", "r1", 3)]
    assert home.client_of("r1", 3) is None


def test_c16_a_dead_node_is_not_waited_for() -> None:
    home = Home(["r1"])
    home.claim("r2", FIRST, 0.0)

    assert brief(home.dead("r1", 0.0)) == [("grant", "r2", 1)]


def test_ended_client_ids_take_no_memory_once_no_older_claim_can_be_under_way() -> None:
    home = Home()
    for number in range(1, 100):
        home.claim("r1", ClaimRequest(number, f"c{number}", number), 0.0)
        home.release("r1", number, Ending.DISCARD)
    assert len(home) == 99

    home.clock.now += 17_000_000
    home.claim("r1", FIRST._replace(number=100, channel=100), 0.0)

    assert len(home) == 1
    assert home.outcomes[Outcome.HAPPY_ENDING] == 100


def test_of_the_claims_that_waited_for_a_home_to_start_the_older_ones_end_nothing() -> None:
    home = Home(["r3"])
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)

    assert brief(home.declare("r3", Declaration([], [], 0), 0.0)) == [("reject", "r1", 1, "happy_fail"), ("grant", "r2", 1)]


# A node's side


def test_c17_a_grant_on_its_way_is_void_once_the_node_was_told_to_end_the_channel() -> None:
    node = NodeClaims()
    claim = node.claim("c")

    assert node.on_end("c", Version(7, 1, 1)) == []  # it overtook the grant
    assert not node.on_granted(claim, 6, Version(6, 1, 1))
    assert node.hang_up(claim.channel) is None  # a release, since it was granted


def test_c17_a_claim_that_is_granted_after_the_end_of_an_older_channel_stands() -> None:
    node = NodeClaims()
    old, new = node.claim("c"), node.claim("c")
    node.on_granted(old, 5, Version(5, 1, 1))

    assert node.on_end("c", Version(7, 1, 2)) == [old.channel]
    assert node.on_granted(new, 7, Version(7, 1, 2))


def test_a_home_that_starts_decides_open_claims_anew() -> None:
    node = NodeClaims()
    claim = node.claim("c")
    node.promise(None, 1)
    node.on_end("c", Version(7, 1, 1, 1))

    node.promise(None, 2)

    assert node.on_granted(claim, 6, Version(7, 1, 1))


def test_a_kick_ends_one_channel_only() -> None:
    node = NodeClaims()
    old, new = node.claim("c"), node.claim("c")
    node.on_granted(old, 5, Version(5, 1, 1))
    node.on_granted(new, 7, Version(7, 1, 2))

    assert node.on_end("c", Version(7, 1, 2), new.channel) == [new.channel]


def test_a_declaration_names_unreleased_channels_and_open_claims() -> None:
    node = NodeClaims()
    granted, released, open_, withdrawn = (node.claim(name, 9, 5) for name in "abcd")
    node.on_granted(granted, 5, Version(10, 1, 1), 4)
    node.on_granted(released, 6, Version(11, 1, 2), 4)
    node.hang_up(released.channel)
    node.hang_up(withdrawn.channel)
    first, second = GrantedChannel("a", 1, 5, Version(10, 1, 1), 4, 9, 5), GrantedChannel("b", 2, 6, Version(11, 1, 2), 4, 9, 5)

    assert node.declaration() == Declaration([first, second], [open_], 4, [])
    node.on_released(released.channel)
    assert node.declaration() == Declaration([first], [open_], 4, [second])
