"""Who is kept out for a while: by client id, user name, address or network, or any of them together.

A ban names one or more of the three; a client is banned when everything that the ban names fits. Operators set bans; repeated
failed logins set them too, always on the address *together with* the name that was tried: one attacker behind a shared address
does not lock out its neighbours, and nobody can lock out a user by failing on purpose from elsewhere. An attacker who tries ever
new names from one address is slowed down instead: from then on, until the window has passed, logins from there are answered
without a password check unless they were right a short while ago (``is_throttled``).

Everything here is in memory and bounded. ``until`` is wall-clock time, since bans outlive a restart.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

import msgspec

from braidmq.access.contract import Credentials
from braidmq.base.errors import Corruption, UsageError

BANS_MAX = 100_000  # that operators set
AUTOMATIC_MAX = 10_000  # the oldest goes first
_COUNTERS_MAX = 20_000

# How many times more failures a whole address may have than one name at that address, before its logins are slowed down.
ADDRESS_FACTOR = 10

# One household or company has at least this much of the IPv6 space to itself.
_IPV6_PREFIX = 64

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Key = tuple[str | None, str | None, _Network | None]


class Ban(msgspec.Struct, frozen=True, kw_only=True):
    """Keeps out every client that fits all of ``client_id``, ``user_name`` and ``address`` that are not None."""

    client_id: str | None = None
    user_name: str | None = None
    address: str | None = None  # an address or a network, as ``ipaddress`` writes it
    since: float
    until: float | None = None  # None: for good
    reason: str = ""
    automatic: bool = False


class _Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    bans: list[Ban]


class _Failures:
    """How many failed logins there were since ``since``; starts again when the window is over."""

    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.count = 0
        self.since = since


class BanTable:
    """All bans in force. ``failures_max`` 0 means that failed logins never lead to a ban."""

    def __init__(
        self,
        *,
        failures_max: int,
        window_s: float,
        duration_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._failures_max = failures_max
        self._window_s = window_s
        self._duration_s = duration_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._bans: dict[_Key, Ban] = {}
        self._automatic: OrderedDict[_Key, None] = OrderedDict()
        self._prefixes: Counter[tuple[int, int]] = Counter()  # (IP version, prefix length) of the networks that bans name
        self._failures: OrderedDict[tuple[str, ...], _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bans)

    def reconfigure(self, *, failures_max: int, window_s: float, duration_s: float) -> None:
        """Count failures by other numbers from now on; bans in force stay."""
        self._failures_max = failures_max
        self._window_s = window_s
        self._duration_s = duration_s

    def add(
        self,
        *,
        client_id: str | None = None,
        user_name: str | None = None,
        address: str | None = None,
        duration_s: float | None = None,
        reason: str = "",
    ) -> Ban:
        """Set a ban, in place of one with the same names; UsageError for a bad address, no names at all, or too many bans."""
        if duration_s is not None and not duration_s > 0:
            raise UsageError("a ban lasts longer than nothing")
        key = _key(client_id, user_name, address)
        if key not in self._bans and len(self._bans) - len(self._automatic) >= BANS_MAX:
            raise UsageError(f"there are {BANS_MAX} bans already", "ban networks, or a user name, in place of single clients")
        return self._put(key, duration_s, reason, automatic=False)

    def remove(self, *, client_id: str | None = None, user_name: str | None = None, address: str | None = None) -> bool:
        """Lift the ban with exactly these names; False when there is none."""
        return self._drop(_key(client_id, user_name, address))

    def list(self) -> tuple[Ban, ...]:
        """Every ban in force, the oldest first."""
        now = self._wall_clock()
        for key in [key for key, ban in self._bans.items() if _is_over(ban, now)]:
            self._drop(key)
        return tuple(sorted(self._bans.values(), key=lambda ban: ban.since))

    def check(self, credentials: Credentials) -> Ban | None:
        """The ban that keeps this client out, if any."""
        if not self._bans:
            return None
        now = self._wall_clock()
        for key in self._keys_of(credentials):
            ban = self._bans.get(key)
            if ban is not None:
                if not _is_over(ban, now):
                    return ban
                self._drop(key)
        return None

    def record_failure(self, credentials: Credentials, user_name: str | None = None) -> Ban | None:
        """Count a failed login (as ``user_name``, if an exchange named another); the ban if this was one too many."""
        if self._failures_max <= 0:
            return None
        address = _address(credentials.peer_host)
        if address is None:
            return None
        household = _household(address)
        self._count("address", household)
        user_name = user_name if user_name is not None else credentials.claimed_name
        client_id = credentials.client_id if user_name is None else None
        counter_key = (household, "user", user_name) if user_name is not None else (household, "client", credentials.client_id)
        if self._count(*counter_key) < self._failures_max:
            return None
        self._failures.pop(counter_key, None)
        key = _key(client_id, user_name, household)
        if key in self._bans and key not in self._automatic:
            return self._bans[key]
        while len(self._automatic) >= AUTOMATIC_MAX:
            self._drop(next(iter(self._automatic)))
        return self._put(key, self._duration_s, f"{self._failures_max} failed logins", automatic=True)

    def is_throttled(self, credentials: Credentials) -> bool:
        """Have there been so many failures from this address that its logins should not cost us anything for now?"""
        if self._failures_max <= 0:
            return False
        address = _address(credentials.peer_host)
        failures = None if address is None else self._failures.get(("address", _household(address)))
        return (
            failures is not None
            and failures.count >= self._failures_max * ADDRESS_FACTOR
            and self._clock() - failures.since < self._window_s
        )

    def snapshot(self) -> bytes:
        """The operators' bans as JSON; automatic ones are short and not kept."""
        return msgspec.json.encode(_Snapshot(1, [ban for ban in self.list() if not ban.automatic]))

    def restore(self, data: bytes) -> None:
        """Take the bans of a snapshot; Corruption when it is none, since a lost ban would let somebody in."""
        try:
            stored = msgspec.json.decode(data, type=_Snapshot)
        except msgspec.DecodeError as error:
            raise Corruption(f"the stored bans do not read back: {error}") from None
        if stored.version != 1:
            raise Corruption(f"the stored bans have version {stored.version}, we know version 1")
        for ban in stored.bans:
            try:
                key = _key(ban.client_id, ban.user_name, ban.address)
            except UsageError as error:
                raise Corruption(f"the stored bans do not read back: {error}") from None
            self._store(key, ban)

    def _put(self, key: _Key, duration_s: float | None, reason: str, *, automatic: bool) -> Ban:
        now = self._wall_clock()
        client_id, user_name, network = key
        ban = Ban(
            client_id=client_id,
            user_name=user_name,
            address=None if network is None else _text(network),
            since=now,
            until=None if duration_s is None else now + duration_s,
            reason=reason,
            automatic=automatic,
        )
        self._store(key, ban)
        return ban

    def _store(self, key: _Key, ban: Ban) -> None:
        self._drop(key)
        self._bans[key] = ban
        if ban.automatic:
            self._automatic[key] = None
        if key[2] is not None:
            self._prefixes[key[2].version, key[2].prefixlen] += 1

    def _drop(self, key: _Key) -> bool:
        if self._bans.pop(key, None) is None:
            return False
        self._automatic.pop(key, None)
        if key[2] is not None:
            kind = (key[2].version, key[2].prefixlen)
            self._prefixes[kind] -= 1
            if not self._prefixes[kind]:
                del self._prefixes[kind]
        return True

    def _keys_of(self, credentials: Credentials) -> Iterator[_Key]:
        """Every key under which a ban of this client can stand."""
        networks: list[_Network | None] = [None]
        address = _address(credentials.peer_host)
        if address is not None:
            networks += [
                ipaddress.ip_network((address, length), strict=False)
                for version, length in self._prefixes
                if version == address.version
            ]
        names = {None, credentials.claimed_name}
        for network in networks:
            for user_name in names:
                yield None, user_name, network
                yield credentials.client_id, user_name, network

    def _count(self, *key: str) -> int:
        now = self._clock()
        failures = self._failures.get(key)
        if failures is None or now - failures.since >= self._window_s:
            failures = self._failures[key] = _Failures(now)
        self._failures.move_to_end(key)
        failures.count += 1
        if len(self._failures) > _COUNTERS_MAX:
            self._failures.popitem(last=False)
        return failures.count


def _is_over(ban: Ban, now: float) -> bool:
    return ban.until is not None and ban.until <= now


def _key(client_id: str | None, user_name: str | None, address: str | None) -> _Key:
    if client_id is None and user_name is None and address is None:
        raise UsageError("a ban needs a client id, a user name or an address")
    network: _Network | None = None
    if address is not None:
        try:
            network = ipaddress.ip_network(_plain(address), strict=False)
        except ValueError:
            raise UsageError(f"{address!r} is neither an address nor a network", "write 192.0.2.7 or 192.0.2.0/24") from None
    return client_id, user_name, network


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The peer's address; None for one that is not of the Internet, such as a Unix socket's."""
    try:
        return ipaddress.ip_address(_plain(host))
    except ValueError:
        return None


def _plain(host: str) -> str:
    """Without a zone, and an IPv4 address in IPv6 clothes as what it is."""
    host = host.partition("%")[0]
    return host[7:] if host.lower().startswith("::ffff:") and "." in host else host


def _household(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """What one subscriber of a network provider has: an IPv4 address, or a whole prefix of IPv6."""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def _text(network: _Network) -> str:
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
