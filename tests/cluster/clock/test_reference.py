"""R1: which core gives the time. What needs a cluster to show is in ``test_clock_world``."""

from __future__ import annotations

from braidmq.cluster.clock.cluster_clock import ClusterClock
from braidmq.cluster.clock.reference import NO_REIGN, CeilingRow, OtherCore, Reference, decode_ceiling, encode_ceiling
from braidmq.cluster.corestore.contract import CoreRow
from braidmq.net.proto_v1_clock import TimeTold

WALL_S = 9000.0
LOWER, HIGHER = OtherCore(1, 71), OtherCore(3, 73)


class Core:
    """Core number 2, at 100 s after its boot."""

    def __init__(self) -> None:
        self.boot_s = 100.0
        self.clock = ClusterClock(lambda: self.boot_s, lambda: self.boot_s)
        self.reference = Reference(self.clock, 2, lambda: WALL_S)

    def hear(self, at_s: float, reign: int, ceiling_s: float) -> None:
        self.clock.take(TimeTold(reign, at_s, 0.01, ceiling_s), self.boot_s)


def test_an_only_core_begins_at_its_wall_clock_and_writes_the_ceiling_first() -> None:
    core = Core()
    assert core.reference.needs_row([])

    planned = core.reference.plan(NO_REIGN, [])

    assert planned == CeilingRow(1, 9_030_000, 2)
    assert not core.clock.is_known
    core.reference.written(planned)
    assert core.clock.reading().ms == 9_000_000
    assert not core.reference.needs_row([])


def test_a_core_that_starts_from_nothing_begins_at_the_ceiling_if_its_wall_clock_is_behind() -> None:
    core = Core()
    planned = core.reference.plan(CeilingRow(4, 9_500_000, 2), [])

    assert planned == CeilingRow(5, 9_530_000, 2)
    core.reference.written(planned)
    assert core.clock.reading().ms == 9_500_000


def test_a_core_with_a_higher_id_does_nothing_while_a_lower_one_lives() -> None:
    core = Core()
    core.hear(5000.0, 4, 5030.0)

    assert not core.reference.needs_row([LOWER, HIGHER])
    assert core.reference.plan(CeilingRow(4, 5_030_000, 1), [LOWER, HIGHER]) is None


def test_a_core_that_knows_no_time_waits_for_the_others() -> None:
    core = Core()
    row = CeilingRow(4, 5_030_000, 1)

    assert core.reference.plan(row, [HIGHER]) is None
    core.reference.note_reign(HIGHER.incarnation, 4)
    assert core.reference.plan(row, [HIGHER]) is None, "it follows the reign, and will tell the time"
    core.reference.note_reign(HIGHER.incarnation, 0)
    assert core.reference.plan(row, [HIGHER]) == CeilingRow(5, 9_030_000, 2)


def test_a_reign_that_no_living_core_has_heard_of_is_passed_over() -> None:
    core = Core()
    core.hear(5000.0, 4, 5030.0)
    row = CeilingRow(5, 5_040_000, 1)  # its reference has died at once

    assert core.reference.plan(row, [HIGHER]) is None
    core.reference.note_reign(HIGHER.incarnation, 4)
    planned = core.reference.plan(row, [HIGHER])

    assert planned == CeilingRow(6, 5_040_000, 2), "the ceiling is high enough"
    core.reference.written(planned)
    assert core.clock.reading().ms == 5_000_000, "from its own estimate"


def test_what_others_have_said_before_a_reign_says_nothing_about_it() -> None:
    core = Core()
    core.reference.plan(CeilingRow(4, 5_030_000, 1), [LOWER])
    core.reference.note_reign(HIGHER.incarnation, 0)

    assert core.reference.plan(CeilingRow(5, 5_040_000, 1), [HIGHER]) is None


def test_a_write_whose_answer_was_lost_counts_once_it_is_read() -> None:
    core = Core()
    planned = core.reference.plan(NO_REIGN, [])
    assert planned is not None

    assert core.reference.plan(planned, []) is None

    assert core.clock.is_reference
    assert core.clock.reign == 1


def test_a_row_that_another_core_has_written_is_not_taken_for_the_own_one() -> None:
    core = Core()
    planned = core.reference.plan(NO_REIGN, [HIGHER])
    assert planned is None
    core.reference.note_reign(HIGHER.incarnation, 0)
    planned = core.reference.plan(NO_REIGN, [HIGHER])
    assert planned is not None

    core.reference.plan(CeilingRow(planned.reign, planned.ceiling_ms, 3), [HIGHER])

    assert not core.clock.is_reference


def test_a_higher_reign_in_the_row_ends_the_own_one() -> None:
    core = Core()
    planned = core.reference.plan(NO_REIGN, [])
    assert planned is not None
    core.reference.written(planned)

    assert core.reference.plan(CeilingRow(2, 9_060_000, 1), [LOWER]) is None

    assert not core.clock.is_reference


def test_the_reference_goes_on_while_a_lower_core_has_not_taken_over() -> None:
    core = Core()
    planned = core.reference.plan(NO_REIGN, [])
    assert planned is not None
    core.reference.written(planned)
    core.boot_s += 11.0

    assert core.reference.needs_row([LOWER])
    assert core.reference.plan(planned, [LOWER]) == CeilingRow(1, 9_041_000, 2)


def test_a_store_that_has_forgotten_the_reign_is_told_again() -> None:
    core = Core()
    core.hear(5000.0, 4, 5030.0)

    assert core.reference.plan(NO_REIGN, [HIGHER]) == CeilingRow(5, 5_030_000, 2)


def test_the_row_is_read_as_it_was_written() -> None:
    row = CeilingRow(3, 1_700_000_000_000, 2)

    assert decode_ceiling(CoreRow(encode_ceiling(row), 7)) == row
    assert decode_ceiling(None) == NO_REIGN
