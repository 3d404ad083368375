"""R22: the time of a connection as its client states it."""

from __future__ import annotations

import pytest

from braidmq.broker.session.local import LocalRegistry
from braidmq.broker.session.ports import Claim, Grant
from braidmq.cluster.registry.stated_times import EARLIER_MS_MAX, StatedTimes
from braidmq.mqtt.packets import MQTT5, Connect
from braidmq.mqtt.properties import Properties
from tests.support.simulator.world import World

OWN_MS = 1_700_000_000_000
NOW_MS = OWN_MS + 500


class Stating(Claim, frozen=True):
    """A claim whose client states something."""

    said: str | None = None

    @property
    def stated_time(self) -> str | None:
        return self.said


def used(said: str | None) -> tuple[int, int]:
    """The time that is used, and how many were ignored."""
    times = StatedTimes()
    claim = Stating("c", None, False, 0, None, None, said)
    return times.time_of(claim, OWN_MS, NOW_MS), times.ignored


@pytest.mark.parametrize("ms", [OWN_MS - EARLIER_MS_MAX, OWN_MS - 1, OWN_MS + 1, NOW_MS])
def test_r22_a_time_within_a_minute_before_the_connection_and_now_counts(ms: int) -> None:
    assert used(str(ms)) == (ms, 0)


@pytest.mark.parametrize("ms", [OWN_MS - EARLIER_MS_MAX - 1, NOW_MS + 1, 0, 10**15, 10**40])
def test_r22_a_time_of_a_clock_that_is_wrong_is_ignored_and_counted(ms: int) -> None:
    assert used(str(ms)) == (OWN_MS, 1)


@pytest.mark.parametrize("text", ["", "now", "-5", "1.7e12", f" {OWN_MS}", f"{OWN_MS}.0", "١٢٣", "0x10"])
def test_what_is_no_number_is_ignored_and_counted(text: str) -> None:
    assert used(text) == (OWN_MS, 1)


def test_a_client_that_states_nothing_has_its_connections_own_time() -> None:
    assert used(None) == (OWN_MS, 0)


@pytest.mark.parametrize(("name", "expected"), [("t", ["1", None]), ("", [None, None])])
def test_the_first_property_of_the_name_is_read_if_one_is_configured(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: list[str | None]
) -> None:
    stated: list[str | None] = []
    claim = LocalRegistry.claim

    def note(registry: LocalRegistry, made: Claim) -> Grant:
        stated.append(made.stated_time)
        return claim(registry, made)

    monkeypatch.setattr(LocalRegistry, "claim", note)
    with World(registry={"version_property": name}) as world:
        for client_id, pairs in (("a", (("x", "9"), ("t", "1"), ("t", "2"))), ("b", (("x", "9"),))):
            world.open(MQTT5).send(Connect(client_id, MQTT5, properties=Properties(user_properties=pairs)))
            world.settle()

    assert stated == expected
