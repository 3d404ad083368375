"""The sweep: what the table has and no node knows goes, what a node serves and the table lacks comes back (R19)."""

from __future__ import annotations

from braidmq.cluster.registry.messages import ClaimRequest, Ending, SweepAnswer
from braidmq.cluster.registry.node_claims import NodeClaims
from braidmq.cluster.registry.sweep import PAGE, RegistrySweep, SweepQuestion
from braidmq.cluster.registry.versions import Version
from tests.support.registry import Home, brief

NOBODY = SweepAnswer(0, 0, [], [])


def test_a_channel_that_its_node_does_not_know_is_removed() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.clock.now += 1
    sweep = RegistrySweep(home)

    assert sweep.next_question(["r1"]) == SweepQuestion("r1", 0, 0)
    actions, unknown = sweep.answered("r1", NOBODY)

    assert brief(actions) == [("ended", "r1", 1, "died")]
    assert unknown == []
    assert (sweep.passes, sweep.removed) == (1, 1)


def test_a_channel_that_its_node_has_asked_for_or_not_released_stays() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.clock.now += 1
    sweep = RegistrySweep(home)
    sweep.next_question(["r1"])

    assert sweep.answered("r1", SweepAnswer(0, 0, [], [1])) == ([], [])


def test_r19_what_was_granted_after_the_question_stays() -> None:
    home = Home()
    sweep = RegistrySweep(home)
    sweep.next_question(["r1"])
    home.connect("r1", 1, 1000)

    assert sweep.answered("r1", NOBODY) == ([], [])
    assert home.registered == "r1:1"


def test_r19_what_waits_for_its_grant_stays() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.connect("r2", 1, 2000)
    home.probed("r1", "c", 1, 0.0)
    home.clock.now += 1
    sweep = RegistrySweep(home)
    sweep.next_question(["r2"])

    assert sweep.answered("r2", NOBODY) == ([], [])
    assert brief(home.release("r1", 1, Ending.TAKEN))[-1] == ("grant", "r2", 1)


def test_an_answer_to_an_earlier_question_counts_for_nothing() -> None:
    home = Home()
    home.connect("r1", 1, 1000)
    home.clock.now += 1
    sweep = RegistrySweep(home)
    sweep.next_question(["r1"])

    assert sweep.answered("r1", SweepAnswer(0, 7, [], [])) == ([], [])


def test_a_channel_that_the_home_does_not_know_is_declared_again() -> None:
    home, node = Home(), NodeClaims()
    claim = node.claim("c", 1000, 5, 1000)
    node.on_granted(claim, 900, Version(1000, 1, 1), 5)
    sweep = RegistrySweep(home)
    question = sweep.next_question(["r1"])
    assert question is not None

    actions, unknown = sweep.answered("r1", node.listed(None, question.first, question.last))

    assert (actions, unknown) == ([], [1])
    assert brief(home.restore("r1", node.redeclared(unknown))) == [("restored", "r1", 1)]
    assert sweep.found == 1


def test_a_large_table_is_asked_for_page_by_page() -> None:
    home = Home()
    for number in range(1, PAGE + 2):
        home.claim("r1", ClaimRequest(number, f"c{number}", number), 0.0)
    sweep = RegistrySweep(home)

    assert [sweep.next_question(["r1"]) for _ in range(2)] == [SweepQuestion("r1", 0, PAGE), SweepQuestion("r1", PAGE, 0)]
    assert sweep.is_over


def test_a_node_names_its_channels_in_a_range() -> None:
    node = NodeClaims(home_of=lambda client_id: client_id[0])
    for name in ("a1", "b2", "a3", "a4"):
        claim = node.claim(name)
        if name != "a4":
            node.on_granted(claim, 1, Version(1, 1, claim.channel))
    node.hang_up(1)

    assert node.listed("a", 0, 0) == SweepAnswer(0, 0, [3], [1, 4])
    assert node.listed("a", 1, 3) == SweepAnswer(1, 3, [3], [])
