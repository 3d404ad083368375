"""The verdict over the engine's figures, and its place below the limits at which the engine itself acts."""

from __future__ import annotations

import msgspec
import pytest

from braidmq.storage.engine import health
from braidmq.storage.engine.health import HealthState, Measurements, judge

CALM = Measurements(
    free_bytes=0,
    is_write_stopped=False,
    delayed_write_rate=0,
    level0_files=4,
    waiting_memtables=1,
    pending_compaction_bytes=1 << 30,
    commit_running_s=0.02,
)


def test_an_idle_engine_is_ok() -> None:
    assert judge(CALM) == health.HEALTHY


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"delayed_write_rate": 16_000}, "limits writes to 16000 bytes/s"),
        ({"level0_files": 16}, "16 table files are waiting for compaction"),
        ({"waiting_memtables": 3}, "3 memtables are waiting"),
        ({"pending_compaction_bytes": 30 << 30}, "30 GiB are waiting for compaction"),
        ({"commit_running_s": 2.5}, "not finished a commit for 2.5 s"),
    ],
)
def test_an_engine_that_falls_behind_is_slow_and_says_why(change: dict[str, int], words: str) -> None:
    verdict = judge(msgspec.structs.replace(CALM, **change))

    assert verdict.state is HealthState.SLOW
    assert words in verdict.reason
    assert not verdict.needs_restart


def test_an_engine_that_has_stopped_writes_counts_as_stopped() -> None:
    verdict = judge(msgspec.structs.replace(CALM, is_write_stopped=True, level0_files=60, commit_running_s=9.0))

    assert (verdict.state, verdict.needs_restart) == (HealthState.STOPPED, False)


def test_slow_comes_before_the_engine_delays_and_stops() -> None:
    assert health.LEVEL0_COMPACT < health.LEVEL0_SLOW < health.LEVEL0_DELAY < health.LEVEL0_STOP
    assert health.MEMTABLES_SLOW < health.MEMTABLES_MAX - 1
    assert health.DEBT_SLOW_BYTES < health.DEBT_DELAY_BYTES < health.DEBT_STOP_BYTES
