"""Bans fit exactly the clients they name, end in time, and never hit a neighbour of the one who failed."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.access import bans
from braidmq.access.bans import Ban, BanTable
from braidmq.access.contract import Credentials
from braidmq.base.errors import Corruption, UsageError
from tests.access.logins import login
from tests.support.fakes.clock import FakeClock


def table(clock: FakeClock | None = None, failures_max: int = 3) -> BanTable:
    clock = clock or FakeClock()
    return BanTable(failures_max=failures_max, window_s=60, duration_s=300, clock=clock, wall_clock=clock)


@pytest.mark.parametrize(
    ("names", "hits", "misses"),
    [
        ({"client_id": "c1"}, login("alice"), login("alice", client_id="c2")),
        ({"user_name": "alice"}, login("alice", client_id="c9"), login("bob")),
        ({"address": "192.0.2.1"}, login(), login(peer_host="192.0.2.2")),
        ({"address": "192.0.2.0/24"}, login(peer_host="192.0.2.200"), login(peer_host="192.0.3.1")),
        ({"address": "2001:db8::/32"}, login(peer_host="2001:db8:1::1"), login(peer_host="2001:db9::1")),
        ({"address": "192.0.2.1"}, login(peer_host="::ffff:192.0.2.1"), login(peer_host="::1")),
        ({"address": "fe80::1"}, login(peer_host="fe80::1%eth0"), login(peer_host="fe80::2%eth0")),
        ({"user_name": "alice", "address": "192.0.2.1"}, login("alice"), login("alice", peer_host="192.0.2.2")),
        ({"user_name": "alice", "client_id": "c1"}, login("alice"), login("bob")),
        ({"user_name": "cert"}, login("alice", certificate_name="cert"), login("alice")),
    ],
)
def test_a_ban_matches_clients_that_have_everything_it_names(
    names: dict[str, Any], hits: Credentials, misses: Credentials
) -> None:
    bans_in_force = table()

    added = bans_in_force.add(**names, reason="noise")

    assert bans_in_force.check(hits) == added
    assert bans_in_force.check(misses) is None
    assert bans_in_force.remove(**names)
    assert not bans_in_force.remove(**names)
    assert bans_in_force.check(hits) is None


def test_a_peer_without_an_internet_address_is_never_banned_by_address() -> None:
    bans_in_force = table()
    bans_in_force.add(address="0.0.0.0/0")
    bans_in_force.add(address="::/0")

    assert bans_in_force.check(login(peer_host="")) is None


def test_a_ban_ends_when_its_time_is_over() -> None:
    clock = FakeClock()
    bans_in_force = table(clock)
    bans_in_force.add(user_name="alice", duration_s=10)

    clock.advance(9.9)
    assert bans_in_force.check(login("alice")) is not None
    assert len(bans_in_force.list()) == 1
    clock.advance(0.1)
    assert bans_in_force.list() == ()
    assert bans_in_force.check(login("alice")) is None
    assert len(bans_in_force) == 0


def test_a_ban_that_is_over_is_dropped_when_it_is_met() -> None:
    clock = FakeClock()
    bans_in_force = table(clock)
    bans_in_force.add(address="192.0.2.0/24", duration_s=10)

    clock.advance(10)

    assert bans_in_force.check(login("alice")) is None
    assert len(bans_in_force) == 0


@pytest.mark.parametrize("names", [{}, {"address": "nowhere"}, {"address": "192.0.2.0/33"}, {"user_name": "a", "duration_s": 0}])
def test_an_empty_ban_is_rejected(names: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        table().add(**names)


def test_repeated_failures_ban_the_name_at_that_address_only() -> None:
    bans_in_force = table(failures_max=3)

    assert bans_in_force.record_failure(login("alice")) is None
    assert bans_in_force.record_failure(login("alice", client_id="other")) is None
    ban = bans_in_force.record_failure(login("alice"))

    assert ban is not None
    assert (ban.user_name, ban.address, ban.client_id, ban.automatic) == ("alice", "192.0.2.1", None, True)
    assert bans_in_force.check_login(login("alice", client_id="any")) == ban
    assert bans_in_force.check_login(login("bob")) is None
    assert bans_in_force.check_login(login("alice", peer_host="192.0.2.9")) is None


def test_clients_without_a_user_name_are_banned_by_client_id() -> None:
    bans_in_force = table(failures_max=1)

    ban = bans_in_force.record_failure(login())

    assert ban is not None
    assert (ban.user_name, ban.client_id, ban.address) == (None, "c1", "192.0.2.1")
    assert bans_in_force.check_login(login(client_id="c2")) is None


def test_addresses_of_one_ipv6_prefix_count_together() -> None:
    bans_in_force = table(failures_max=2)

    bans_in_force.record_failure(login("alice", peer_host="2001:db8:0:1::1"))
    bans_in_force.record_failure(login("alice", peer_host="2001:db8:0:1:ffff::2"))

    assert bans_in_force.check_login(login("alice", peer_host="2001:db8:0:1::3")) is not None
    assert bans_in_force.check_login(login("alice", peer_host="2001:db8:0:2::3")) is None


def test_old_failures_are_forgotten() -> None:
    clock = FakeClock()
    bans_in_force = table(clock, failures_max=2)

    bans_in_force.record_failure(login("alice"))
    clock.advance(60)

    assert bans_in_force.record_failure(login("alice")) is None
    assert bans_in_force.record_failure(login("alice")) is not None


def test_an_automatic_ban_ends_and_counting_starts_again() -> None:
    clock = FakeClock()
    bans_in_force = table(clock, failures_max=2)
    for _ in range(2):
        bans_in_force.record_failure(login("alice"))

    clock.advance(300)

    assert bans_in_force.check_login(login("alice")) is None
    assert bans_in_force.record_failure(login("alice")) is None


def test_ever_new_names_from_one_address_are_throttled_but_not_banned() -> None:
    clock = FakeClock()
    bans_in_force = table(clock, failures_max=3)
    for number in range(3 * bans.ADDRESS_FACTOR - 1):
        bans_in_force.record_failure(login(f"user{number}"))
    assert not bans_in_force.is_throttled(login("alice"))

    bans_in_force.record_failure(login("one more"))

    assert bans_in_force.is_throttled(login("alice"))
    assert bans_in_force.check_login(login("alice")) is None
    assert not bans_in_force.is_throttled(login("alice", peer_host="192.0.2.2"))
    clock.advance(60)
    assert not bans_in_force.is_throttled(login("alice"))


def test_a_limit_of_zero_failures_never_bans() -> None:
    bans_in_force = table(failures_max=0)

    for _ in range(1000):
        assert bans_in_force.record_failure(login("alice")) is None
    assert not bans_in_force.is_throttled(login("alice"))


def test_tables_that_attackers_can_fill_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "AUTOMATIC_MAX", 5)
    monkeypatch.setattr(bans, "_COUNTERS_MAX", 10)
    bans_in_force = table(failures_max=1)
    kept = bans_in_force.add(user_name="operator's choice")

    for number in range(100):
        bans_in_force.record_failure(login(f"user{number}", peer_host=f"192.0.2.{number}"))

    assert len(bans_in_force) == 6
    assert len(bans_in_force._failures) <= 10
    assert kept in bans_in_force.list()
    assert bans_in_force.check_login(login("user99", peer_host="192.0.2.99")) is not None


def test_an_automatic_ban_does_not_shorten_one_that_an_operator_set() -> None:
    bans_in_force = table(failures_max=1)
    kept = bans_in_force.add(user_name="alice", address="192.0.2.1")

    assert bans_in_force.record_failure(login("alice")) == kept
    assert bans_in_force.list() == (kept,)


def test_an_automatic_ban_rejects_only_logins_and_an_operator_can_lift_it() -> None:
    bans_in_force = table(failures_max=1)
    automatic = bans_in_force.record_failure(login("alice"))

    assert bans_in_force.check(login("alice")) is None
    assert (bans_in_force.list(), bans_in_force.automatic) == ((automatic,), 1)
    assert bans_in_force.remove(user_name="alice", address="192.0.2.1")
    assert bans_in_force.check_login(login("alice")) is None
    assert len(bans_in_force) == 0


def test_a_ban_of_an_operator_takes_the_place_of_an_automatic_one() -> None:
    bans_in_force = table(failures_max=1)
    bans_in_force.record_failure(login("alice", peer_host="2001:db8:0:1::1"))

    kept = bans_in_force.add(user_name="alice", address="2001:db8:0:1::/64")

    assert bans_in_force.list() == (kept,)
    assert bans_in_force.check(login("alice", peer_host="2001:db8:0:1::9")) == kept


def test_many_unchecked_logins_count_as_a_flood_until_the_window_ends() -> None:
    clock = FakeClock()
    bans_in_force = table(clock, failures_max=3)
    for _ in range(3 * bans.FLOOD_FACTOR - 1):
        bans_in_force.record_refusal(login("alice"))
    assert not bans_in_force.is_flooded(login("bob"))

    bans_in_force.record_refusal(login("bob"))

    assert bans_in_force.is_flooded(login("carol"))
    assert not bans_in_force.is_flooded(login("carol", peer_host="192.0.2.2"))
    clock.advance(60)
    assert not bans_in_force.is_flooded(login("carol"))


def test_operators_bans_survive_in_a_snapshot_and_automatic_ones_do_not() -> None:
    clock = FakeClock()
    before, after = table(clock, failures_max=1), table(clock)
    kept = [before.add(client_id="c1", reason="noise"), before.add(address="192.0.2.0/24", duration_s=100)]
    before.record_failure(login("alice", peer_host="198.51.100.1"))

    after.restore(before.snapshot())

    assert list(after.list()) == kept
    assert after.check(login(client_id="x", peer_host="192.0.2.77")) == kept[1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"version": 2, "bans": []}',
        b'{"version": 1, "bans": [{"since": 1}]}',
        b'{"version": 1, "bans": [{"address": 5}]}',
    ],
)
def test_a_broken_snapshot_does_not_count_as_empty(data: bytes) -> None:
    with pytest.raises(Corruption):
        table().restore(data)


def test_bans_that_operators_set_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "BANS_MAX", 1)
    bans_in_force = table()
    bans_in_force.add(user_name="a", reason="old")

    with pytest.raises(UsageError, match="already"):
        bans_in_force.add(user_name="b")
    renewed: Ban = bans_in_force.add(user_name="a", reason="new")

    assert bans_in_force.list() == (renewed,)


def test_a_list_from_elsewhere_replaces_what_operators_have_set_here() -> None:
    here, there = table(), table()
    here.add(address="192.0.2.0/24")
    there.add(client_id="c", reason="new")
    there.add(address="198.51.100.0/24")

    here.replace(there.list())

    assert here.list() == there.list()
    assert here.check(login(client_id="x", peer_host="192.0.2.77")) is None
    assert here.check(login(client_id="x", peer_host="198.51.100.7")) is not None
    here.lift(there.list()[0])
    assert here.check(login(client_id="c", peer_host="203.0.113.1")) is None


def test_a_list_with_a_bad_address_changes_nothing() -> None:
    here = table()
    kept = here.add(client_id="c")

    with pytest.raises(UsageError):
        here.replace([Ban(client_id="d", since=1.0), Ban(address="nowhere", since=1.0)])

    assert here.list() == (kept,)
