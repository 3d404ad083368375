"""How many connections are accepted in one turn of the loop."""

from __future__ import annotations

import asyncio
import socket
from itertools import count

import pytest

from braidmq.base.listening import door as door_module
from braidmq.base.listening.door import ACCEPTS_PER_TURN, Door

WAITING = 60


async def accepted_by_turn() -> list[int]:
    """How many of 60 waiting connections each turn accepts, until all are."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=WAITING) as listening:
        listening.setblocking(False)
        clients = [socket.create_connection(listening.getsockname()) for _ in range(WAITING)]
        door = Door("tcp", listening, lambda: True, lambda accepted, peer: taken.append(accepted))
        door.open()
        found = []
        while len(taken) < WAITING:
            before = len(taken)
            await asyncio.sleep(0)
            found.append(len(taken) - before)
        door.close()
        for each in (*taken, *clients):
            each.close()
    return found


@pytest.mark.parametrize(("step_s", "most"), [(0, ACCEPTS_PER_TURN), (1, 1)], ids=["fast", "slow"])
def test_a_storm_is_accepted_by_the_number_and_by_the_clock(monkeypatch: pytest.MonkeyPatch, step_s: int, most: int) -> None:
    times = count(0, step_s)
    monkeypatch.setattr(door_module, "monotonic", lambda: next(times))

    assert max(asyncio.run(accepted_by_turn())) == most
