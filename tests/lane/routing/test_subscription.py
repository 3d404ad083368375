"""What a subscription knows of itself."""

from __future__ import annotations

import pytest

from braidmq.lane.routing.subscription import Subscription
from tests.support.simulator.lane import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("no_local", "identifiers", "passes"), [(False, b"", True), (True, b"", False), (False, b"\x0b\x01", False)]
)
def test_a_frame_is_forwarded_only_if_no_byte_of_it_would_change(
    bench: Bench, no_local: bool, identifiers: bytes, passes: bool
) -> None:
    assert Subscription(bench.flow(), b"t", 2, no_local=no_local, identifiers=identifiers).passes_frames == passes
