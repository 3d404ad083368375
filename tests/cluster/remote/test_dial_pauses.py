"""How often a replicant tries to reach a core that is away."""

from __future__ import annotations

import pytest

from braidmq.cluster.remote.core_reach import dial_pauses
from braidmq.net.dialer import PAUSE_S_MAX


@pytest.mark.parametrize("lease_s", [1.0, 10.0])
def test_a_replicant_tries_several_times_within_its_lease_however_long_the_core_was_away(lease_s: float) -> None:
    pauses = dial_pauses(lease_s)
    for _ in range(20):
        pauses.next()

    assert sum(pauses.next() for _ in range(4)) <= lease_s


def test_the_pauses_of_a_replicant_with_a_long_lease_have_the_usual_maximum() -> None:
    pauses = dial_pauses(3600.0)
    for _ in range(20):
        pauses.next()

    assert pauses.next() <= PAUSE_S_MAX
