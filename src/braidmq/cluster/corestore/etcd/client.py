"""Calls of etcd on grpc.aio: several members with fail-over, a deadline for every call, logins, TLS.

Each member has a channel of its own, because gRPC cannot fail over between names with TLS. A call is sent only on a connection
that is up and was checked: so a call that fails before that was certainly not carried out, and a connection that was lost and
made again, perhaps to a store restored from a backup, is noticed before it is used (C8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final, TypeVar

import grpc
from msgspec import Struct

from braidmq.base.errors import ConfigError, Unavailable
from braidmq.cluster.corestore.etcd.failures import EtcdFailure, EtcdUser, Meaning, refusal
from braidmq.cluster.corestore.etcd.members import MemberChoice
from braidmq.cluster.corestore.etcd.messages import AUTHENTICATE, STATUS, authenticate_request, decode_token

Answer = TypeVar("Answer")
Send = Callable[[str, bytes], Awaitable[bytes]]
Check = Callable[[Send], Awaitable[None]]
Metadata = tuple[tuple[str, str], ...]

RECEIVED_BYTES_MAX: Final = 64 * 1024 * 1024
_ROUND_PAUSE_S: Final = 0.1
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVED_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),  # etcd is part of the cluster; a proxy from the environment is not meant for it
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 3000),
    # etcd closes connections that ping more than every 5 s, or without a call.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.keepalive_permit_without_calls", 0),
)


class EtcdTls(Struct, frozen=True):
    """PEM contents: the authorities to trust, and this node's certificate and key if etcd asks for one."""

    ca: bytes
    cert: bytes = b""
    key: bytes = b""


class EtcdTimes(Struct, frozen=True):
    """Deadlines: of a call to one member, of a call with all attempts, and how long a watch may be silent before it is probed."""

    attempt_s: float = 2.0
    call_s: float = 6.0
    silence_s: float = 10.0


DEFAULT_TIMES: Final = EtcdTimes()


class EtcdStream:
    """A stream of messages in both directions with one member."""

    def __init__(self, call: Any, member: int, address: str) -> None:
        self.member = member
        self._call = call
        self._address = address
        self._reading: asyncio.Task[Any] | None = None

    async def send(self, message: bytes) -> None:
        """Send a message. Raises EtcdFailure."""
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as problem:
            raise _failure(problem, self._address) from None

    async def receive(self, timeout_s: float) -> bytes | None:
        """The next message; None: none came in this time, and the stream is still open. Raises EtcdFailure."""
        if self._reading is None:  # a read that is cancelled would end the stream, so it is left waiting
            self._reading = asyncio.ensure_future(self._call.read())
        done, _ = await asyncio.wait({self._reading}, timeout=timeout_s)
        if not done:
            return None
        reading, self._reading = self._reading, None
        try:
            message = reading.result()
        except grpc.aio.AioRpcError as problem:
            raise _failure(problem, self._address) from None
        except asyncio.CancelledError:
            raise EtcdFailure("CANCELLED", "the connection was closed", self._address) from None
        if message is grpc.aio.EOF:
            raise EtcdFailure("UNAVAILABLE", "the stream has ended", self._address)
        return bytes(message)

    async def close(self) -> None:
        """End the stream."""
        self._call.cancel()
        if self._reading is not None:
            await asyncio.wait({self._reading})
            if not self._reading.cancelled():
                self._reading.exception()
            self._reading = None


class EtcdClient:
    """Calls etcd. Used on one loop; `close` it there."""

    def __init__(
        self,
        addresses: Sequence[str],
        user: EtcdUser,
        tls: EtcdTls | None,
        times: EtcdTimes,
        check: Check,
    ) -> None:
        """``check``: called with each new connection before it is used; what it raises beside EtcdFailure ends the call."""
        self._addresses = tuple(addresses)
        self._user = user
        self._tls = tls
        self._times = times
        self._check = check
        self._choice = MemberChoice(len(self._addresses))
        self._channels: dict[int, Any] = {}
        self._checked: set[int] = set()
        self._token = ""
        self._login = asyncio.Lock()

    async def close(self) -> None:
        """End all connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        self._checked.clear()

    async def call(self, method: str, request: bytes, decode: Callable[[bytes], Answer], *, is_repeatable: bool = True) -> Answer:
        """Call a member. Raises Unavailable, ConfigError or UsageError, and EtcdFailure for what the caller has to judge.

        ``is_repeatable``: it does no harm if it is carried out twice, so it is tried with every member until its deadline.
        """
        deadline = monotonic() + self._times.call_s
        failure = EtcdFailure("UNAVAILABLE", "no answer")
        while True:
            for member in self._choice.order(monotonic()):
                try:
                    await self._ready(member, deadline)
                except EtcdFailure as problem:
                    failure = self._on_failure(member, problem)
                    continue
                try:
                    data = await self._send(member, method, request, deadline)
                except EtcdFailure as problem:
                    failure = self._on_failure(member, problem)
                    if not is_repeatable and problem.meaning is Meaning.ELSEWHERE:
                        raise Unavailable(f"{problem}; whether the commit happened is unknown") from None
                    continue
                self._choice.on_answer(member)
                return self._decoded(data, decode, member)
            if monotonic() + _ROUND_PAUSE_S >= deadline:
                raise Unavailable(str(failure))
            await asyncio.sleep(_ROUND_PAUSE_S)

    @asynccontextmanager
    async def stream(self, method: str, timeout_s: float | None = None) -> AsyncIterator[EtcdStream]:
        """A stream with a member that has a leader. Raises EtcdFailure inside and outside, ConfigError, or Unavailable."""
        deadline = monotonic() + self._times.call_s
        member = await self._any_ready(deadline)
        metadata = (*await self._metadata(member, deadline), ("hasleader", "true"))
        call = self._channels[member].stream_stream(method)(metadata=metadata, timeout=timeout_s)
        stream = EtcdStream(call, member, self._addresses[member])
        try:
            yield stream
        except EtcdFailure as problem:
            self._on_failure(member, problem)
            raise
        else:
            self._choice.on_answer(member)
        finally:
            await stream.close()

    def forget_login(self) -> None:
        """Log in again before the next call."""
        self._token = ""

    async def _any_ready(self, deadline: float) -> int:
        failure = EtcdFailure("UNAVAILABLE", "no answer")
        for member in self._choice.order(monotonic()):
            try:
                await self._ready(member, deadline)
            except EtcdFailure as problem:
                failure = self._on_failure(member, problem)
            else:
                return member
        raise Unavailable(str(failure))

    def _on_failure(self, member: int, problem: EtcdFailure) -> EtcdFailure:
        match problem.meaning:
            case Meaning.ELSEWHERE | Meaning.BUSY:
                self._choice.on_failure(member, monotonic())
                return problem
            case Meaning.REFUSED | Meaning.LOGIN:
                raise refusal(problem, self._user.name) from None
            case _:
                raise problem

    def _decoded(self, data: bytes, decode: Callable[[bytes], Answer], member: int) -> Answer:
        try:
            return decode(data)
        except ValueError as problem:
            raise Unavailable(f"{self._addresses[member]} does not answer like etcd: {problem}") from None

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _ready(self, member: int, deadline: float) -> None:
        """Return when the connection to a member is up and checked."""
        end = min(deadline, monotonic() + self._times.attempt_s)
        channel = self._channel(member)
        state = channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            self._checked.discard(member)
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                await self._raw(member, STATUS, b"", (), end)  # fails at once, and says why
            try:
                async with asyncio.timeout(max(end - monotonic(), 0)):
                    await channel.wait_for_state_change(state)
            except TimeoutError:
                raise EtcdFailure("UNAVAILABLE", "no connection", self._addresses[member]) from None
            state = channel.get_state(try_to_connect=True)
        if member not in self._checked:
            await self._check(lambda method, request: self._send(member, method, request, end))
            self._checked.add(member)

    def _channel(self, member: int) -> Any:
        if member not in self._channels:
            address = self._addresses[member]
            if self._tls is None:
                self._channels[member] = grpc.aio.insecure_channel(address, options=_OPTIONS)
            else:
                credentials = grpc.ssl_channel_credentials(self._tls.ca or None, self._tls.key or None, self._tls.cert or None)
                self._channels[member] = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        return self._channels[member]

    async def _send(self, member: int, method: str, request: bytes, deadline: float) -> bytes:
        """Call a member with a token; a token that is no longer valid is replaced, once."""
        metadata = await self._metadata(member, deadline)
        try:
            return await self._raw(member, method, request, metadata, deadline)
        except EtcdFailure as problem:
            if problem.meaning is not Meaning.LOGIN or not self._user.name:
                raise
        if metadata == (("token", self._token),):  # another call may have replaced it
            self.forget_login()
        return await self._raw(member, method, request, await self._metadata(member, deadline), deadline)

    async def _raw(self, member: int, method: str, request: bytes, metadata: Metadata, deadline: float) -> bytes:
        timeout_s = max(min(self._times.attempt_s, deadline - monotonic()), 0.001)
        try:
            return bytes(await self._channel(member).unary_unary(method)(request, timeout=timeout_s, metadata=metadata))
        except grpc.aio.AioRpcError as problem:
            raise _failure(problem, self._addresses[member]) from None

    async def _metadata(self, member: int, deadline: float) -> Metadata:
        if not self._user.name:
            return ()
        async with self._login:
            if not self._token:
                request = authenticate_request(self._user.name, self._user.password)
                try:
                    data = await self._raw(member, AUTHENTICATE, request, (), deadline)
                except EtcdFailure as problem:
                    if problem.meaning is Meaning.AUTH_OFF:
                        hint = "remove the key, or enable authentication in etcd"
                        raise ConfigError("cluster.etcd_username", "etcd has no authentication", hint) from None
                    raise
                self._token = self._decoded(data, decode_token, member).token
            return (("token", self._token),)


def _failure(problem: Exception, address: str) -> EtcdFailure:
    if isinstance(problem, grpc.aio.AioRpcError):
        return EtcdFailure(problem.code().name, problem.details() or "", address)
    return EtcdFailure("UNAVAILABLE", "the stream has ended", address)
