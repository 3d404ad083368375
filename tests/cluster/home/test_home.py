"""A core's home, before its broker is there."""

from __future__ import annotations

from pathlib import Path

from braidmq.base.config.settings import HistorySettings
from braidmq.cluster.home.home import Home
from braidmq.cluster.membership.member import Member
from braidmq.cluster.rlog.agent import AgentPace
from braidmq.cluster.rlog.tables import STORE
from braidmq.cluster.routes import origin_of
from braidmq.storage.log import DurableLog


def test_a_home_begins_with_the_deaths_of_nodes_that_ended_with_the_core(tmp_path: Path) -> None:
    log = DurableLog.open(tmp_path, HistorySettings())
    try:
        home = Home(Member("core1", 2), 2.0, AgentPace(), log, dead=[Member("core1/w1", 1)])

        assert home.tables.is_fenced(origin_of("core1/w1"), 1)
        assert not home.tables.is_fenced(origin_of("core1/w1"), 2), "its next life"
        rows = home.tables.get(STORE)
        assert rows is not None
        assert rows.sequence == 1, "other nodes learn of it"
    finally:
        log.close()
