"""Authenticates callers of the history service and checks their filters. The node makes all decisions."""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote

import pyarrow.flight as flight

from braidmq.base.errors import ProtocolViolation
from braidmq.flight.wire import Problem
from braidmq.history import messages
from braidmq.history.service.errors import HistoryError
from braidmq.history.service.flight_errors import to_flight
from braidmq.history.service.node_link import Answer, NodeLink
from braidmq.mqtt.topics import check_filter

MIDDLEWARE: Final = "caller"
_READER_HEADER: Final = "x-braidmq-reader"
_READER_BYTES_MAX: Final = 255
# The node looks up each filter on its event loop, in microseconds.
_FILTERS_MAX: Final = 500
_PEERS_MAX: Final = 4096  # connections that are known to belong to accepted callers
# Arrow Flight does not report the address of a handshake. No host has this address; bans and failed logins of all handshakes
# count under it. The calls that follow are checked under their own address.
_HANDSHAKE_HOST: Final = "0.0.0.0"


class Caller(NamedTuple):
    """A caller. `key` selects the limits: the user, or the host of an anonymous caller."""

    user_name: str | None
    reader: str
    host: str
    key: str


class Authorization:
    """Authenticates callers and checks whether they may read each filter."""

    def __init__(self, node: NodeLink) -> None:
        self._node = node
        self._peers: dict[tuple[str, str], None] = {}  # hosts and ports whose last call was let in, in order
        self._lock = threading.Lock()

    def enter(self, context: flight.ServerCallContext) -> Caller:
        """Authenticate the caller; raises HistoryError `unauthenticated`."""
        shown = context.get_middleware(MIDDLEWARE)
        host, port = _address(context.peer())
        granted = self._authenticate(shown.headers, host)
        self._remember(host, port)
        key = f"user {granted.user_name}" if granted.user_name is not None else f"host {host}"
        return Caller(granted.user_name, _reader(shown.headers), host, key)

    def _remember(self, host: str, port: str) -> None:
        with self._lock:
            self._peers.pop((host, port), None)
            self._peers[host, port] = None
            if len(self._peers) > _PEERS_MAX:
                del self._peers[next(iter(self._peers))]

    def is_known(self, host: str, port: int) -> bool:
        """Whether a call from this address was let in; for any thread."""
        return (host, str(port)) in self._peers

    def handshake(self, headers: Mapping[str, Sequence[str]]) -> str:
        """The authorization header for further calls of a user with a password; empty for other callers."""
        token = self._authenticate(headers, _HANDSHAKE_HOST).token
        return f"Bearer {token}" if token else ""

    def _authenticate(self, headers: Mapping[str, Sequence[str]], host: str) -> messages.ReaderGranted:
        question = _question(headers.get("authorization", ()), _reader(headers), host)
        return self._ask_who(question, messages.ReaderGranted)

    def _ask_who(self, question: messages.Authenticate | messages.MayRead, kind: type[Answer]) -> Answer:
        """Ask the node to authenticate; a denial becomes `unauthenticated`."""
        try:
            return self._node.ask(question, kind)
        except HistoryError as error:
            if error.problem.code == "forbidden":
                detail = error.problem.detail or "access denied"
                raise HistoryError(Problem("unauthenticated", f"{detail}; use a user and password, or a token")) from None
            raise

    def check(self, caller: Caller, filters: Sequence[str]) -> None:
        """Raise HistoryError unless every filter is valid and the caller may subscribe to it."""
        if not filters:
            raise HistoryError(Problem("bad-request", "a read needs at least one topic filter; `#` matches all topics"))
        if len(filters) > _FILTERS_MAX:
            detail = f"a read may have at most {_FILTERS_MAX} topic filters, not {len(filters)}; use wildcards, or several reads"
            raise HistoryError(Problem("bad-request", detail))
        for each in filters:
            try:
                check_filter(each)
            except ProtocolViolation as problem:
                raise HistoryError(Problem("bad-request", f"{each!r} is not a topic filter: {problem.detail}")) from None
            if each.startswith(("$share/", "$replay/", "$exclusive/")):
                raise HistoryError(Problem("bad-request", f"{each!r} is for MQTT subscriptions only; use the filter inside it"))
        self.check_again(caller, filters)

    def check_again(self, caller: Caller, filters: Sequence[str]) -> None:
        """Raise HistoryError if an authenticated caller has lost access since, or may no longer read these filters."""
        question = messages.MayRead(caller.reader, caller.host, caller.user_name, list(filters))
        refused = self._ask_who(question, messages.Filters).refused
        if refused:
            who = f"user {caller.user_name!r}" if caller.user_name is not None else "anonymous readers"
            raise HistoryError(Problem("forbidden", f"{who} may not subscribe to {', '.join(map(repr, refused))}"))


def _question(shown: Sequence[str], reader: str, host: str) -> messages.Authenticate:
    if not shown:
        return messages.Authenticate(reader, host)
    scheme, _, rest = shown[0].partition(" ")
    if scheme.lower() == "bearer":
        return messages.Authenticate(reader, host, token=rest.strip())
    try:
        if scheme.lower() != "basic":
            raise ValueError
        user_name, colon, password = base64.b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise HistoryError(
            Problem("unauthenticated", "`authorization` must be `Basic` or `Bearer` (RFC 7617, RFC 6750)")
        ) from None
    return messages.Authenticate(reader, host, user_name=user_name, password=password if colon else None)


def _reader(headers: Mapping[str, Sequence[str]]) -> str:
    shown = next(iter(headers.get(_READER_HEADER, ())), "")
    try:
        name = unquote(shown, errors="strict")
    except UnicodeDecodeError:
        raise HistoryError(Problem("bad-request", f"{_READER_HEADER} must be percent-encoded UTF-8")) from None
    if len(name.encode()) > _READER_BYTES_MAX:
        raise HistoryError(Problem("bad-request", f"the name of a reader must not exceed {_READER_BYTES_MAX} bytes"))
    return name


def _address(peer: str) -> tuple[str, str]:
    """Host and port in gRPC's `ipv4:127.0.0.1:50000` or `ipv6:%5B::1%5D:50000`."""
    family, _, rest = peer.partition(":")
    if not family.startswith("ip"):
        return peer, ""
    host, _, port = rest.rpartition(":")
    return host.replace("%5B", "").replace("%5D", "").strip("[]"), port


class _Shown(flight.ServerMiddleware):  # type: ignore[misc] # pyarrow has no types
    """The headers of a caller, kept until the address of the caller is known."""

    def __init__(self, headers: Mapping[str, Sequence[str]], answer: str = "") -> None:
        self.headers = headers
        self._answer = answer

    def sending_headers(self) -> dict[str, str]:
        """After a handshake: the header for further calls."""
        return {"authorization": self._answer} if self._answer else {}


class ShownFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc] # pyarrow has no types
    """Keeps the headers of every call; answers a handshake with a token."""

    def __init__(self, authorization: Authorization) -> None:
        self._authorization = authorization

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Shown:
        """Called by Flight before each call."""
        if info.method == flight.FlightMethod.HANDSHAKE:
            try:
                return _Shown(headers, self._authorization.handshake(headers))
            except HistoryError as error:
                raise to_flight(error.problem) from None
        return _Shown(headers)
