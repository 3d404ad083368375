"""The figures of the commit thread, with a clock of the test's own."""

from __future__ import annotations

import threading

import pytest

from braidmq.storage.engine import committer as module
from braidmq.storage.engine.committer import RECENT_S, Committer


class Clock:
    """In the place of the ``time`` module."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Commits:
    """A commit thread whose commits take as long as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(module, "time", self.clock)
        self._takes_s = 0.0
        self._number = 0
        self._done = threading.Event()
        self.committer = Committer(self._flush, 0, lambda _: self._done.set(), self._fail)
        self.committer.start()

    def _fail(self, problem: Exception) -> None:
        pytest.fail(str(problem))

    def _flush(self) -> None:
        self.clock.now += self._takes_s

    def commit(self, takes_s: float) -> None:
        self._takes_s = takes_s
        self._number += 1
        self._done.clear()
        self.committer.wrote(self._number)
        assert self._done.wait(10)

    def recent(self) -> float:
        return round(self.committer.recent_s_max(), 6)


def test_the_longest_recent_commit_is_forgotten_after_one_to_two_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits(monkeypatch)
    assert commits.recent() == 0

    commits.commit(0.5)
    commits.commit(0.1)
    assert commits.recent() == 0.5
    commits.clock.now += RECENT_S
    commits.commit(0.2)
    assert commits.recent() == 0.5
    commits.clock.now += RECENT_S
    commits.commit(0.1)
    assert commits.recent() == 0.2
    commits.clock.now += 2 * RECENT_S

    assert commits.recent() == 0
    assert commits.committer.commit_s_max == pytest.approx(0.5)
    assert commits.committer.close()


def test_after_a_long_pause_old_commits_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits(monkeypatch)
    commits.commit(0.5)
    commits.clock.now += 10 * RECENT_S

    commits.commit(0.1)

    assert commits.recent() == 0.1
    assert commits.committer.committed_at == commits.clock.now
    assert commits.committer.close()
