"""The schedules of the linear registry (docs/schedules.md), each as the order of events that it describes.

`test_model.py` has all orders at small bounds, and finds the bugs of R1 to R4 and R10 to R15 when they are planted.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

from braidmq.broker.session.ports import Claim
from braidmq.cluster.clock.cluster_clock import UNKNOWN_MS, ClockReading
from braidmq.cluster.registry.decisions import RESTARTS_MAX
from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import ClaimRequest, Declaration, Ending, GrantedChannel, Outcome
from braidmq.cluster.registry.node_claims import NodeClaims
from braidmq.cluster.registry.times import ConnectionTimes
from braidmq.cluster.registry.versions import Stamp, Version, granted, is_older
from tests.support.registry import BOUND_MS, WAIT_S, Home, brief, claim_of


class ShownClock:
    """A cluster's clock that shows what it is told."""

    def __init__(self, now: ClockReading, at: Callable[[float], ClockReading]) -> None:
        self.now = now
        self.at = at

    def reading(self) -> ClockReading:
        return self.now


def declared(node: str, channel: int, version: Version, guard: int = 900, ms: int = 0) -> GrantedChannel:
    return GrantedChannel("c", channel, guard, version, 5, ms or version.ms, 5)


# Versions


def test_r1_within_the_error_of_both_clocks_the_later_arrival_wins() -> None:
    home = Home()
    home.connect("r1", 1, 1000)

    assert home.connect("r2", 1, 998) == [("probe", "r1", 1)]
    assert brief(home.probed("r1", "c", 1, 0.0)) == [("end", "r1", 1)]


def test_r1_beyond_it_the_newer_one_wins() -> None:
    home = Home()
    home.connect("r1", 1, 1000)

    assert home.connect("r2", 1, 989) == [("reject", "r2", 1, "happy_fail")]
    assert home.registered == "r1:1"


def test_r1_a_node_whose_clock_is_not_certain_claims_nothing() -> None:
    uncertain = ShownClock(ClockReading(5000, 1001), lambda at: ClockReading(4000, BOUND_MS))

    assert ConnectionTimes(uncertain).of(Claim("c", None, False, 0, None, None)) is None


def test_r4_a_connection_is_as_old_as_the_last_word_of_its_peer() -> None:
    class Late(Claim, frozen=True):
        @property
        def spoke_at(self) -> float:
            return 7.0

    clock = ShownClock(ClockReading(60_000, BOUND_MS), lambda at: ClockReading(int(at * 1000), BOUND_MS))
    times = ConnectionTimes(clock).of(Late("c", None, False, 0, None, None))

    assert times is not None
    assert (times.ms, times.made_ms) == (7000, 60_000)


def test_r10_a_granted_version_is_no_later_than_any_clock_has_shown() -> None:
    home = Home(nodes=("r1", "r2", "r3", "r4"))
    for node in ("r1", "r2", "r3"):
        home.claim(node, claim_of(1, 1000, bound_ms=0), 0.0)
        home.expire(WAIT_S)

    assert home.version_of("c") is not None
    assert home.connect("r4", 1, 1001)[0][0] == "probe", "it is the newest"


def test_r10_versions_of_one_clock_are_compared_exactly() -> None:
    newer = Stamp(Version(100, 1, 2), 5, "r1")

    assert is_older(Stamp(Version(89, 1, 1), 5, "r1"), newer)
    assert not is_older(Stamp(Version(90, 1, 1), 5, "r1"), newer), "the kernel dates connections to a tick of 10 ms at worst"
    assert not is_older(Stamp(Version(90, 2, 1), 5, "r2"), newer)


def test_r10_who_wins_with_the_lower_version_is_granted_the_higher_one_and_the_next_arrival() -> None:
    highest = Stamp(Version(100, 1, 7), 5, "r1")

    assert granted(Stamp(Version(95, 2, 1), 5, "r2"), highest) == Stamp(Version(100, 1, 7, 1), 5, "r1")
    assert granted(Stamp(Version(101, 2, 1), 5, "r2"), highest) == Stamp(Version(101, 2, 1), 5, "r2")


def test_r10_a_channel_that_is_older_than_the_one_before_the_last_stays_older() -> None:
    home = Home()
    home.connect("r1", 1, 110)
    home.connect("r2", 1, 101)
    home.probed("r1", "c", 1, 0.0)
    home.release("r1", 1, Ending.TAKEN)

    assert home.connect("r1", 2, 99) == [("reject", "r1", 2, "happy_fail")], "r1's own clock says so"


# One claim after the other


def test_r2_a_stuck_owner_does_not_cost_the_newcomer_its_turn() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)

    assert brief(home.expire(WAIT_S)) == [("end", "r1", 1), ("ended", "r1", 1, "taken"), ("grant", "r2", 1)]


def test_r2_an_owner_that_has_gone_meanwhile_is_no_reason_to_abort() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)

    assert brief(home.release("r1", 1, Ending.DISCARD)) == [("ended", "r1", 1, "discard"), ("grant", "r2", 1)]
    assert home.restarts == 1


def test_r2_a_claim_whose_answer_was_lost_gets_it_again() -> None:
    home = Home()
    home.connect("r1", 1, 1000)

    assert home.connect("r1", 1, 1000) == [("grant", "r1", 1)]


def test_r2_only_exhausted_restarts_abort_a_claim() -> None:
    home = Home(restarts_max=0)
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)

    assert brief(home.release("r1", 1, Ending.PUBLISH)) == [("reject", "r2", 1, "abort"), ("ended", "r1", 1, "publish")]
    assert RESTARTS_MAX == 3


def test_r3_the_owner_serves_on_during_any_number_of_probes() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)
    home.connect("r3", 1, 3000)

    assert home.client_of("r1", 1) == "c"
    assert home.probes == 1
    assert brief(home.probed("r1", "c", 1, 0.0)) == [("end", "r1", 1), ("reject", "r2", 1, "expensive_fail")]
    assert home.registered == "r3:1"


def test_r3_a_winner_whose_node_dies_leaves_a_loser_that_can_be_found() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)
    home.probed("r1", "c", 1, 0.0)

    home.dead("r2", 0.0)

    assert home.connect("r3", 1, 3000) == [], "it waits for the release of the first one"
    assert brief(home.release("r1", 1, Ending.TAKEN)) == [("ended", "r1", 1, "taken"), ("grant", "r3", 1)]


def test_r7_the_table_takes_at_most_250_bytes_a_client_beside_its_id() -> None:
    count = 20_000
    ids = [f"client-{number}" for number in range(count)]
    home: HomeClaims[str] = HomeClaims(1.0, lambda: 1_700_000_000_000_000)
    home.meet("r1", 1)
    gc.collect()
    tracemalloc.start()
    for number in range(count):
        ms = 1_700_000_000_000 + number
        home.claim("r1", ClaimRequest(number + 1, ids[number], number + 1, ms, 5, ms), 0.0)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert taken / count <= 250


def test_r9_a_home_that_starts_grants_nothing_before_all_nodes_have_declared() -> None:
    home = Home(["r1", "r2"])
    home.declare("r2", Declaration([], [], 0), 0.0)

    assert home.connect("r2", 1, 2000) == []
    actions = home.declare("r1", Declaration([declared("r1", 1, Version(1000, 1, 1))], [], 1), 0.0)
    assert brief(actions) == [("restored", "r1", 1), ("probe", "r1", 1)]


def test_r11_a_channel_that_has_lost_does_not_arrive_again() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 1000)
    home.probed("r1", "c", 1, 0.0)

    assert home.connect("r1", 1, 1000) == [("end", "r1", 1), ("grant", "r1", 1)], "it is void, and has to be released"
    home.release("r1", 1, Ending.WITHDRAWN)
    assert home.connect("r1", 1, 1000) == [("reject", "r1", 1, "expensive_fail")]
    assert home.registered == "r2:1"


def test_r12_an_older_claim_finds_that_a_newer_channel_has_come_and_gone() -> None:
    home = Home()
    home.connect("r2", 1, 2000)
    home.release("r2", 1, Ending.PUBLISH)

    assert home.connect("r1", 1, 1000) == [("reject", "r1", 1, "happy_fail")]
    assert home.connect("r1", 2, 2001) == [("grant", "r1", 2)]


def test_r12_nodes_tell_a_home_that_has_restarted() -> None:
    node = NodeClaims()
    claim = node.claim("c", 2000, 5, 2000)
    node.on_granted(claim, 900, Version(2000, 2, 1), 5)
    node.hang_up(claim.channel)
    node.on_released(claim.channel)
    home = Home(["r2"])

    home.declare("r2", node.declaration(), 0.0)

    assert home.connect("r1", 1, 1000) == [("reject", "r1", 1, "happy_fail")]
    assert node.is_outdated("c", 1000)


def test_r12_if_home_and_node_have_died_the_stored_session_decides() -> None:
    home = Home(guard_of_row=lambda client_id: 14_000_000)
    home.clock.now = 15_000_000

    assert brief(home.claim("r1", claim_of(1, 1000)._replace(age_ms=10_000), 0.0)) == [("reject", "r1", 1, "happy_fail")]
    assert brief(home.claim("r1", claim_of(2, 1000)._replace(age_ms=500), 0.0)) == [("grant", "r1", 2)]


def test_r12_a_claim_that_comes_after_its_deadline_is_late() -> None:
    home = Home(deadline_s=15.0, cluster_clock=lambda: ClockReading(40_000, BOUND_MS))

    assert home.connect("r1", 1, 20_000) == [("reject", "r1", 1, "late")]
    assert home.connect("r1", 2, 30_000) == [("grant", "r1", 2)]


def test_r13_a_guard_is_fixed_when_its_claim_is_decided() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)
    home.probed("r1", "c", 1, 0.0)
    home.connect("r3", 1, 3000)
    home.probed("r2", "c", 1, 0.0)

    assert brief(home.release("r1", 1, Ending.TAKEN)) == [("ended", "r1", 1, "taken"), ("grant", "r3", 1)]
    owner = home.owner("c")
    assert owner is not None
    assert owner.guard == home.guard_of("c") == home.clock.now + 2


def test_r14_a_node_that_has_declared_to_a_term_accepts_nothing_of_a_lower_one() -> None:
    node = NodeClaims()
    node.promise(None, 6)

    assert not node.accepts("c", 5)
    assert node.accepts("c", 6)
    assert node.accepts("c", 7)


def test_r15_a_home_that_starts_goes_by_the_versions_that_were_granted() -> None:
    home = Home(["r1", "r2"])
    home.declare("r1", Declaration([declared("r1", 1, Version(1001, 1, 1))], [], 1), 0.0)

    actions = home.declare("r2", Declaration([declared("r2", 1, Version(1001, 1, 1, 1), 950, ms=1000)], [], 1), 0.0)

    assert brief(actions) == [("ended", "r1", 1, "taken"), ("end", "r1", 1), ("restored", "r2", 1)]


def test_r15_and_not_by_guards_which_may_come_from_another_clock() -> None:
    home = Home(["r1", "r2"], guard_of_row=lambda client_id: 5_000_000)
    home.declare("r1", Declaration([declared("r1", 1, Version(1000, 1, 1), guard=5_000_000)], [], 1), 0.0)

    home.declare("r2", Declaration([declared("r2", 1, Version(2000, 2, 1), guard=900)], [], 1), 0.0)

    owner = home.owner("c")
    assert owner is not None
    assert (owner.node, owner.guard) == ("r2", 5_000_001)


def test_r15_what_is_below_a_channel_that_ended_lately_leaves() -> None:
    home = Home(["r1", "r2"])
    home.declare("r1", Declaration([declared("r1", 1, Version(1000, 1, 1))], [], 1), 0.0)

    actions = home.declare("r2", Declaration([], [], 1, [declared("r2", 1, Version(2000, 2, 1))]), 0.0)

    assert brief(actions) == [("end", "r1", 1)]
    assert home.registered is None


def test_r17_how_the_loser_ended_is_known_before_the_grant() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)
    home.probed("r1", "c", 1, 0.0)

    assert brief(home.release("r1", 1, Ending.DISCARD)) == [("ended", "r1", 1, "discard"), ("grant", "r2", 1)]


def test_r18_a_crowd_costs_the_newest_one_probe_and_no_restart_that_waits() -> None:
    home = Home(nodes=(), restarts_max=3)
    home.connect("r0", 1, 1000)
    for number in range(1, 120):
        home.connect(f"r{number}", 1, 1000 + number * 11)

    actions = brief(home.probed("r0", "c", 1, 0.0))

    assert actions[0] == ("end", "r0", 1)
    assert home.registered == "r119:1"
    assert home.probes == 1
    assert brief(home.release("r0", 1, Ending.TAKEN)) == [("ended", "r0", 1, "taken"), ("grant", "r119", 1)]
    assert home.outcomes[Outcome.ABORT] == 0


def test_r18_who_was_given_up_in_the_probe_is_not_waited_for_again() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)

    home.expire(WAIT_S)

    assert home.client_of("r2", 1) == "c"


def test_r22_a_node_asks_nothing_for_a_connection_that_is_older_than_one_it_has_claimed_for() -> None:
    node = NodeClaims()
    node.claim("c", 2000, 5, 2000)

    assert node.is_outdated("c", 1989)
    assert not node.is_outdated("c", 1990), "the kernel dates connections to a tick of 10 ms at worst"
    assert not node.is_outdated("d", 1989), "nobody has claimed it"


def test_r23_a_claim_without_a_version_counts_as_new_give_or_take_a_second() -> None:
    home = Home()
    home.clock.now = 10_000_000
    home.claim("r1", ClaimRequest(1, "c", 1), 0.0)

    assert home.connect("r2", 1, 8990) == [("reject", "r2", 1, "happy_fail")]
    assert home.connect("r2", 2, 8995) == [("probe", "r1", 1)]


def test_r24_guards_follow_the_clock_of_the_log_and_not_the_versions() -> None:
    home = Home()
    home.clock.now = 12_000_005
    home.connect("r1", 1, 99_000_000)

    assert home.guard_of("c") == 12_000_005


def test_a_home_that_does_not_know_the_time_yet_takes_the_versions_of_nodes() -> None:
    home = Home(cluster_clock=lambda: ClockReading(0, UNKNOWN_MS))

    assert home.connect("r1", 1, 1_700_000_000_000) == [("grant", "r1", 1)]


def test_a_time_that_no_clock_shows_yet_is_refused_and_changes_nothing() -> None:
    home = Home(cluster_clock=lambda: ClockReading(1000, BOUND_MS))

    assert home.connect("r1", 1, 1011) == [("reject", "r1", 1, "invalid")]
    assert brief(home.claim("r1", claim_of(2, 1000, bound_ms=1001), 0.0)) == [("reject", "r1", 2, "invalid")]
    assert home.owner("c") is None
    assert home.connect("r1", 3, 1010) == [("grant", "r1", 3)]
