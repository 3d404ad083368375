"""What a producer sends again is appended once (S5), and producers that are silent for long are forgotten."""

from __future__ import annotations

import pytest

from braidmq.base.errors import UsageError
from braidmq.storage.format.rows import PRODUCER_PREFIX, PRODUCERS_END
from braidmq.storage.shard import REPEATED
from tests.storage.log import FAMILY, NOON, Log, entries

pytestmark = pytest.mark.smoke

HOUR = 3_600_000_000


def test_s5_a_batch_that_is_sent_again_is_appended_once() -> None:
    log = Log()
    log.append("m1", "m2", producer=b"node/1", sequence=1)
    log.append("m3", producer=b"node/2", sequence=1)

    again = log.append("m1", "m2", producer=b"node/1", sequence=1)

    assert again == [REPEATED, REPEATED]
    assert [record.topic for record in log.read("#")] == [b"m1", b"m2", b"m3"]


def test_s5_a_repeat_in_other_batches_keeps_what_is_new_in_it() -> None:
    log = Log()
    log.append("m1", "m2", "m3", producer=b"n", sequence=1)

    stamps = log.append("m3", "m4", "m5", producer=b"n", sequence=3)

    assert stamps[0] == REPEATED
    assert stamps[1:] == [NOON + 3, NOON + 4]
    assert [record.topic for record in log.read("#")] == [b"m1", b"m2", b"m3", b"m4", b"m5"]


def test_s5_a_repeat_within_one_batch_is_dropped() -> None:
    log = Log()
    batch = log.store.batch()
    log.shard.append(batch, entries(["m1"]), producer=b"n", sequence=7)

    again = log.shard.append(batch, entries(["m1"]), producer=b"n", sequence=7)

    assert again == [REPEATED]


def test_s5_a_repeat_after_a_crash_is_dropped_if_and_only_if_its_record_is_there() -> None:
    for kept, expected in ((1, [b"m1", b"m2"]), (2, [b"m1", b"m2"])):
        log = Log()
        log.append("m1", producer=b"n", sequence=1)
        log.append("m2", producer=b"n", sequence=2, commit=False)

        log = log.reopened(kept)
        again = log.append("m2", producer=b"n", sequence=2)

        assert [record.topic for record in log.read("#")] == expected
        assert (again == [REPEATED]) == (kept == 2)


def test_sequences_may_have_gaps_and_producers_do_not_touch_each_other() -> None:
    log = Log()
    log.append("a", producer=b"n", sequence=5)
    log.append("b", producer=b"n/1", sequence=2)

    assert log.append("c", producer=b"n", sequence=50) != [REPEATED]
    assert (log.shard.last_sequence(b"n"), log.shard.last_sequence(b"n/1"), log.shard.last_sequence(b"other")) == (50, 2, 0)


def test_a_producer_without_a_sequence_is_refused() -> None:
    log = Log()

    with pytest.raises(UsageError):
        log.append("a", producer=b"n")
    with pytest.raises(UsageError):
        log.append("a", producer=bytes(2000), sequence=1)


def test_producers_that_were_silent_for_long_are_forgotten_in_slices() -> None:
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
    assert log.shard.last_sequence(b"old1") == 0
