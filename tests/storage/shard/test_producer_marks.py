"""How far producers have come is written with their records, and those that are silent for long are forgotten."""

from __future__ import annotations

import pytest

from braidmq.storage.format.rows import PRODUCER_PREFIX, PRODUCERS_END
from braidmq.storage.shard.producer_marks import NO_MARK, ProducerMark
from tests.storage.log import FAMILY, NOON, Log

pytestmark = pytest.mark.smoke

HOUR = 3_600_000_000


def test_the_sequence_of_a_producer_survives_a_crash_if_and_only_if_its_record_does() -> None:
    for kept in (1, 2):
        log = Log()
        log.append("m1", producer=b"n", sequence=1)
        log.append("m2", producer=b"n", sequence=2, commit=False)

        log = log.reopened(kept)

        assert len(log.read("#")) == kept
        assert log.shard.producer_mark(b"n") == ProducerMark(kept)


def test_sequences_may_have_gaps_and_producers_do_not_touch_each_other() -> None:
    log = Log()
    log.append("a", producer=b"n", sequence=5)
    log.append("b", producer=b"n/1", sequence=2)
    log.append("c", producer=b"n", sequence=50)

    assert [log.shard.producer_mark(name).sequence for name in (b"n", b"n/1", b"other")] == [50, 2, 0]


def test_idle_producers_are_forgotten_in_slices() -> None:
    log = Log()
    for number in range(5):
        log.append("a", producer=b"old%d" % number, sequence=1)
    log.hands.move(31 * 24 * HOUR)
    log.append("a", producer=b"old3", sequence=2)
    log.append("a", producer=b"young", sequence=1)

    after: bytes | None = b""
    rounds = 0
    while after is not None:
        batch = log.store.batch()
        after = log.shard.expire_producers(batch, NOON + HOUR, after, count_max=2)
        log.store.write(batch)
        rounds += 1

    left = [key[1:] for key, _ in log.store.items(FAMILY, PRODUCER_PREFIX, PRODUCERS_END)]
    assert left == [b"old3", b"young"]
    assert rounds == 3
    assert log.shard.producer_mark(b"old1") == NO_MARK
