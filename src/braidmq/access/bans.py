"""Bans: by client id, user name, address or network, or a combination of them.

A ban names one or more of the three; it applies to clients that match all of them. Operators set bans, which apply to
everything a client does (``check``). Repeated failed logins set bans as well, always on the address *together with* the name that
was tried: an attacker behind a shared address does not lock out its neighbours, and failing on purpose from elsewhere does not
lock out a user. An attacker who keeps trying new names from one address is throttled instead: until the window has passed,
logins from that address are rejected without a password check (``is_throttled``).

Automatic bans and the throttle only prevent guessing: ``LocalAccess`` applies them to logins alone, and exempts logins that
succeeded from the same address recently (``recent_logins``). They never end a connection.

Everything here is in memory and bounded. ``until`` is wall-clock time, since bans survive a restart.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator

import msgspec

from braidmq.access.contract import Credentials
from braidmq.base.errors import Corruption, UsageError

BANS_MAX = 100_000  # set by operators
AUTOMATIC_MAX = 10_000  # beyond it, the oldest is removed
_COUNTERS_MAX = 20_000

# How many times more failures a whole address may have than one name at that address before its logins are throttled.
ADDRESS_FACTOR = 10

# How many times more logins from an address may be rejected unchecked within a window than failures of one name, before a recent
# login counts only together with its client id. Until then each rejected login is a free guess at a password used recently.
FLOOD_FACTOR = 100

# One household or company has at least this much of the IPv6 address space to itself.
_IPV6_PREFIX = 64

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Key = tuple[str | None, str | None, _Network | None]
_LoginKey = tuple[str, str, str]  # of an automatic ban: the household, "user" or "client", and the name


class Ban(msgspec.Struct, frozen=True, kw_only=True):
    """Rejects clients that match all of ``client_id``, ``user_name`` and ``address`` that are not None."""

    client_id: str | None = None
    user_name: str | None = None
    address: str | None = None  # an address or a network, as ``ipaddress`` writes it
    since: float
    until: float | None = None  # None: permanent
    reason: str = ""
    automatic: bool = False


class _Snapshot(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    bans: list[Ban]


class _Failures:
    """The number of failed logins since ``since``; restarts when the window is over."""

    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.count = 0
        self.since = since


class BanTable:
    """All active bans. With ``failures_max`` 0, failed logins never lead to a ban."""

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
        self._automatic: OrderedDict[_LoginKey, Ban] = OrderedDict()
        self._prefixes: Counter[tuple[int, int]] = Counter()  # (IP version, prefix length) of the banned networks
        self._failures: OrderedDict[tuple[str, ...], _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._bans) + len(self._automatic)

    @property
    def automatic(self) -> int:
        """The number of bans set by failed logins."""
        return len(self._automatic)

    @property
    def counts_failures(self) -> bool:
        """Whether failed logins can lead to a ban."""
        return self._failures_max > 0

    def reconfigure(self, *, failures_max: int, window_s: float, duration_s: float) -> None:
        """Use other limits for failures from now on; existing bans stay."""
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
        """Set a ban, replacing one with the same names; UsageError for a bad address, no names at all, or too many bans."""
        ban = self.make(client_id=client_id, user_name=user_name, address=address, duration_s=duration_s, reason=reason)
        self.put(ban)
        return ban

    def make(
        self,
        *,
        client_id: str | None = None,
        user_name: str | None = None,
        address: str | None = None,
        duration_s: float | None = None,
        reason: str = "",
    ) -> Ban:
        """A ban that is not set yet; UsageError as for `add`."""
        if duration_s is not None and not duration_s > 0:
            raise UsageError("the duration of a ban must be positive")
        key = _key(client_id, user_name, address)
        if key not in self._bans and len(self._bans) >= BANS_MAX:
            raise UsageError(f"there are {BANS_MAX} bans already", "ban a network or a user name instead of single clients")
        return self._make(key, duration_s, reason, automatic=False)

    def remove(self, *, client_id: str | None = None, user_name: str | None = None, address: str | None = None) -> bool:
        """Remove the ban with exactly these values; returns False if there is none."""
        key = _key(client_id, user_name, address)
        return self._drop_automatic(key) or self._drop(key)

    def find(self, *, client_id: str | None = None, user_name: str | None = None, address: str | None = None) -> Ban | None:
        """The ban with exactly these values; None if there is none."""
        key = _key(client_id, user_name, address)
        login = _login_of(key)
        automatic = None if login is None else self._automatic.get(login)
        return automatic or self._bans.get(key)

    def put(self, ban: Ban) -> None:
        """Take over an operator's ban as it is. Raises UsageError for a bad address."""
        key = _key(ban.client_id, ban.user_name, ban.address)
        self._drop_automatic(key)
        self._store(key, ban)

    def lift(self, ban: Ban) -> None:
        """Remove an operator's ban with the names of this one."""
        self._drop(_key(ban.client_id, ban.user_name, ban.address))

    def replace(self, bans: Iterable[Ban]) -> None:
        """Take over these as all operators' bans. Raises UsageError for a bad address, and then nothing has changed."""
        keyed = {_key(ban.client_id, ban.user_name, ban.address): ban for ban in bans}
        self._bans.clear()
        self._prefixes.clear()
        for key, ban in keyed.items():
            self._store(key, ban)

    def list(self) -> tuple[Ban, ...]:
        """All active bans, the oldest first."""
        now = self._wall_clock()
        for key in [key for key, ban in self._bans.items() if _is_over(ban, now)]:
            self._drop(key)
        for login in [login for login, ban in self._automatic.items() if _is_over(ban, now)]:
            del self._automatic[login]
        return tuple(sorted([*self._bans.values(), *self._automatic.values()], key=lambda ban: ban.since))

    def check(self, credentials: Credentials) -> Ban | None:
        """The operators' ban that applies to this client, if any."""
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
        """Count a failed login (as ``user_name``, if an exchange named another); returns the ban if it has caused one."""
        if self._failures_max <= 0:
            return None
        address = _address(credentials.peer_host)
        if address is None:
            return None
        household = _household(address)
        self._count("address", household)
        user_name = user_name if user_name is not None else credentials.claimed_name
        login = _login(household, credentials.client_id, user_name)
        if self._count(*login) < self._failures_max:
            return None
        self._failures.pop(login, None)
        key = _key(credentials.client_id if user_name is None else None, user_name, household)
        if key in self._bans:
            return self._bans[key]
        ban = self._make(key, self._duration_s, f"{self._failures_max} failed logins", automatic=True)
        self._automatic[login] = ban
        self._automatic.move_to_end(login)
        if len(self._automatic) > AUTOMATIC_MAX:
            self._automatic.popitem(last=False)
        return ban

    def check_login(self, credentials: Credentials, user_name: str | None = None) -> Ban | None:
        """The automatic ban that applies to a login (as ``user_name``, if an exchange named another), if any."""
        if not self._automatic:
            return None
        address = _address(credentials.peer_host)
        if address is None:
            return None
        user_name = user_name if user_name is not None else credentials.claimed_name
        login = _login(_household(address), credentials.client_id, user_name)
        ban = self._automatic.get(login)
        if ban is not None and _is_over(ban, self._wall_clock()):
            del self._automatic[login]
            return None
        return ban

    def is_throttled(self, credentials: Credentials) -> bool:
        """Whether this address has failed so often that its logins are rejected without a check for now."""
        return self._is_above("address", credentials, ADDRESS_FACTOR)

    def record_refusal(self, credentials: Credentials) -> None:
        """Count a login that was rejected without a check."""
        address = _address(credentials.peer_host)
        if address is not None:
            self._count("refused", _household(address))

    def is_flooded(self, credentials: Credentials) -> bool:
        """Whether too many logins from this address were rejected unchecked for a recent password alone to count."""
        return self._is_above("refused", credentials, FLOOD_FACTOR)

    def _is_above(self, kind: str, credentials: Credentials, factor: int) -> bool:
        if self._failures_max <= 0 or not self._failures:
            return False
        address = _address(credentials.peer_host)
        counted = None if address is None else self._failures.get((kind, _household(address)))
        return (
            counted is not None
            and counted.count >= self._failures_max * factor
            and self._clock() - counted.since < self._window_s
        )

    def snapshot(self) -> bytes:
        """The operators' bans as JSON; automatic ones are short-lived and not stored."""
        return msgspec.json.encode(_Snapshot(1, [ban for ban in self.list() if not ban.automatic]))

    def restore(self, data: bytes) -> None:
        """Restore the bans of a snapshot; raises Corruption if it is invalid, since a lost ban would admit a banned client."""
        try:
            stored = msgspec.json.decode(data, type=_Snapshot)
        except msgspec.DecodeError as error:
            raise Corruption(f"the stored bans cannot be read: {error}") from None
        if stored.version != 1:
            raise Corruption(
                f"the stored bans have version {stored.version}, but this version of braidmq supports version 1 only"
            )
        for ban in stored.bans:
            try:
                key = _key(ban.client_id, ban.user_name, ban.address)
            except UsageError as error:
                raise Corruption(f"the stored bans cannot be read: {error}") from None
            self._store(key, ban)

    def _make(self, key: _Key, duration_s: float | None, reason: str, *, automatic: bool) -> Ban:
        now = self._wall_clock()
        client_id, user_name, network = key
        return Ban(
            client_id=client_id,
            user_name=user_name,
            address=None if network is None else _text(network),
            since=now,
            until=None if duration_s is None else now + duration_s,
            reason=reason,
            automatic=automatic,
        )

    def _store(self, key: _Key, ban: Ban) -> None:
        self._drop(key)
        self._bans[key] = ban
        if key[2] is not None:
            self._prefixes[key[2].version, key[2].prefixlen] += 1

    def _drop(self, key: _Key) -> bool:
        if self._bans.pop(key, None) is None:
            return False
        if key[2] is not None:
            kind = (key[2].version, key[2].prefixlen)
            self._prefixes[kind] -= 1
            if not self._prefixes[kind]:
                del self._prefixes[kind]
        return True

    def _drop_automatic(self, key: _Key) -> bool:
        login = _login_of(key)
        return login is not None and self._automatic.pop(login, None) is not None

    def _keys_of(self, credentials: Credentials) -> Iterator[_Key]:
        """Every key under which a ban of this client may be stored."""
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


def _login_of(key: _Key) -> _LoginKey | None:
    """The key of an automatic ban with these names; None: there is never one."""
    client_id, user_name, network = key
    if network is None or (client_id is None) == (user_name is None):
        return None
    return _login(_text(network), client_id or "", user_name)


def _login(household: str, client_id: str, user_name: str | None) -> _LoginKey:
    """The key by which failed logins are counted: the user name at that address, or the client id if there is no name."""
    return (household, "client", client_id) if user_name is None else (household, "user", user_name)


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
    """The peer's address; None if it is not an IP address, such as that of a Unix socket."""
    try:
        return ipaddress.ip_address(_plain(host))
    except ValueError:
        return None


def _plain(host: str) -> str:
    """The address without a zone; an IPv4-mapped IPv6 address becomes IPv4."""
    host = host.partition("%")[0]
    return host[7:] if host.lower().startswith("::ffff:") and "." in host else host


def _household(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """What a network provider assigns to one subscriber: an IPv4 address, or a whole IPv6 prefix."""
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))


def _text(network: _Network) -> str:
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
