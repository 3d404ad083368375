"""A core's part in the cluster's time, on a store whose rows outlive it."""

from __future__ import annotations

import asyncio

from braidmq.cluster.clock.core_time import CoreTime
from braidmq.cluster.clock.reference import AHEAD_S, CEILING_KEY, CLOCK, decode_ceiling
from braidmq.net.proto_v1_clock import AskTime
from tests.support.fakes.core_store import FakeCoreStore

WALL_S = 1_700_000_000.0


def core(wall_s: float = WALL_S) -> CoreTime:
    return CoreTime("core1", lambda: wall_s)


def test_an_only_core_knows_the_time_as_soon_as_it_is_a_member_and_goes_on_above_the_ceiling_after_a_restart() -> None:
    async def scenario() -> None:
        store = FakeCoreStore()
        first = core()

        await first.begin(1, store, dict)

        assert WALL_S * 1000 <= first.clock.reading().ms < (WALL_S + 5) * 1000
        written = decode_ceiling(await store.get(CLOCK, CEILING_KEY))
        assert written.ceiling_s >= WALL_S + AHEAD_S

        second = core(WALL_S - 3600)
        await second.begin(1, store, dict)

        assert second.clock.reading().ms >= written.ceiling_ms
        assert second.tell(AskTime()).reign == 2

    asyncio.run(scenario())
