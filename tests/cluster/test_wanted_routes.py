"""Filters of other nodes as destinations, when a batch of changes says more than one thing of a filter."""

from __future__ import annotations

from braidmq.cluster.rlog.origin_log import Entry
from braidmq.cluster.rlog.tables import Tables
from braidmq.cluster.routes import LIVE, WantedRoutes, origin_of
from braidmq.lane.peers.peer import PeerFlow
from braidmq.lane.routing.subscription import Subscription
from tests.support.simulator.lane import Bench


def test_the_last_change_of_a_filter_in_a_batch_counts() -> None:
    bench = Bench()
    destination = Subscription(PeerFlow("n", bench.state), b"#", 2)
    tables = Tables(lambda changes: wanted.apply(changes))
    wanted = WantedRoutes(bench.routes, tables, origin_of("core1"), lambda name: destination, shares=False)

    tables.apply(origin_of("n"), 1, 1, [Entry(b"gone", LIVE), Entry(b"gone", None), Entry(b"back", LIVE)])
    tables.apply(origin_of("n"), 1, 4, [Entry(b"back", None), Entry(b"back", LIVE)])

    gone, back = bench.routes.resolve(b"gone"), bench.routes.resolve(b"back")
    assert gone is not None
    assert back is not None
    assert (gone.targets, back.targets) == ([], [destination])
