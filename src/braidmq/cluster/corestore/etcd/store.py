"""The core store in etcd. A position is a revision of etcd; other users of the same etcd make gaps between them."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

from braidmq.base.backoff import Backoff
from braidmq.base.errors import ConfigError, Unavailable
from braidmq.cluster.corestore.contract import (
    CommitsMissed,
    Condition,
    CoreCommit,
    CoreRow,
    PutRow,
    RowWrite,
    TableRows,
    check_conditions,
    check_writes,
    revision_of,
)
from braidmq.cluster.corestore.etcd import messages as etcd
from braidmq.cluster.corestore.etcd.client import DEFAULT_TIMES, EtcdClient, EtcdStream, EtcdTimes, EtcdTls, Send
from braidmq.cluster.corestore.etcd.failures import NO_USER, EtcdFailure, EtcdUser, Meaning, refusal
from braidmq.cluster.corestore.etcd.identity import StoreIdentity, StoreMark
from braidmq.cluster.corestore.etcd.keys import EtcdKeys
from braidmq.cluster.corestore.etcd.watch_cursor import WatchCancelled, WatchCursor

log = logging.getLogger("braidmq.cluster")

PAGE_ROWS_MAX: Final = 200  # of 256 KiB at most, so a page is below the client's limit of 64 MiB
STORE: Final = "store"
RESTORES: Final = b"restores"
_LISTINGS_MAX: Final = 5
_WATCH_FIRST_S, _WATCH_MAX_S = 0.1, 3.0

Answer = TypeVar("Answer", etcd.RangeAnswer, etcd.TxnAnswer)


class EtcdCoreStore:
    """Implements `CoreStore`. Used on one loop; `close` it there. Every call also raises StoreRestored, and ConfigError if etcd
    refuses this node.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        cluster: str,
        *,
        user: EtcdUser = NO_USER,
        tls: EtcdTls | None = None,
        times: EtcdTimes = DEFAULT_TIMES,
        known: StoreMark | None = None,
    ) -> None:
        """``known``: the `mark` of an earlier process of this node, so that a restore in the meantime is noticed."""
        self._keys = EtcdKeys(cluster)
        self._user = user
        self._times = times
        self._identity = StoreIdentity(known)
        self._client = EtcdClient(addresses, user, tls, times, self._check)

    @property
    def mark(self) -> StoreMark | None:
        """What this node knows of the store; None before the first call."""
        return self._identity.mark

    @property
    def incarnation(self) -> tuple[int, int]:
        """Cluster id of etcd and number of its restores: positions are compared only within the same."""
        return self._identity.incarnation

    async def close(self) -> None:
        """End all connections; calls under way fail."""
        await self._client.close()

    # -- rows ----------------------------------------------------------------------------------------------------------

    async def get(self, table: str, key: bytes) -> CoreRow | None:
        """A row; None if it does not exist."""
        answer = await self._linearizable(etcd.RANGE, etcd.range_request(self._keys.key(table, key)), etcd.decode_range)
        return CoreRow(answer.rows[0].value, answer.rows[0].mod_revision) if answer.rows else None

    async def list_rows(self, table: str) -> TableRows:
        """All rows of a table, read in pages as of one revision."""
        for _ in range(_LISTINGS_MAX):
            try:
                return await self._list_rows(table)
            except EtcdFailure as problem:
                if problem.meaning is not Meaning.COMPACTED:
                    raise
        raise Unavailable(f"etcd was compacted {_LISTINGS_MAX} times while the table {table!r} was read")

    async def _list_rows(self, table: str) -> TableRows:
        first, end = self._keys.table(table)
        rows: dict[bytes, CoreRow] = {}
        prefix_bytes, revision = len(first), 0
        while True:
            request = etcd.range_request(first, end, limit=PAGE_ROWS_MAX, revision=revision)
            answer = await self._linearizable(etcd.RANGE, request, etcd.decode_range)
            revision = revision or answer.header.revision
            for row in answer.rows:
                rows[row.key[prefix_bytes:]] = CoreRow(row.value, row.mod_revision)
            if not answer.has_more or not answer.rows:
                return TableRows(revision, rows)
            first = answer.rows[-1].key + b"\0"

    async def commit(self, conditions: Sequence[Condition], writes: Sequence[RowWrite]) -> int | None:
        """Write all rows if all conditions hold: the position of the commit; None: one did not hold."""
        check_conditions(conditions)
        check_writes(writes)
        comparisons = [etcd.comparison(self._keys.key(each.table, each.key), each.revision) for each in conditions]
        request = etcd.txn_request(comparisons, [self._operation(write) for write in writes])
        try:
            answer = await self._linearizable(etcd.TXN, request, etcd.decode_txn, is_repeatable=False)
        except EtcdFailure as problem:
            if problem.meaning is Meaning.LEASE_ENDED:
                return None
            raise
        if not answer.is_done:
            return None
        for write in writes:
            if isinstance(write, PutRow):
                self._identity.on_written(self._keys.key(write.table, write.key), answer.header.revision, write.value)
        return answer.header.revision

    def _operation(self, write: RowWrite) -> bytes:
        key = self._keys.key(write.table, write.key)
        return etcd.put_operation(key, write.value, write.lease) if isinstance(write, PutRow) else etcd.delete_operation(key)

    async def _linearizable(
        self, method: str, request: bytes, decode: Callable[[bytes], Answer], *, is_repeatable: bool = True
    ) -> Answer:
        self._identity.check()
        known = self._identity.revision
        answer = await self._client.call(method, request, decode, is_repeatable=is_repeatable)
        self._identity.on_linearizable(answer.header, known)
        return answer

    # -- leases --------------------------------------------------------------------------------------------------------

    async def grant_lease(self, ttl_s: float) -> int:
        """A new lease; etcd counts whole seconds, and 2 at least. One whose number is lost with its answer ends by itself."""
        self._identity.check()
        request = etcd.lease_grant_request(math.ceil(ttl_s))
        answer = await self._client.call(etcd.LEASE_GRANT, request, etcd.decode_lease)
        self._identity.on_header(answer.header)
        return answer.lease

    async def renew_lease(self, lease: int) -> bool:
        """Let a lease last for its whole time again; False: it has ended."""
        self._identity.check()
        failure: EtcdFailure | None = None
        for _ in range(2):
            try:
                async with self._client.stream(etcd.LEASE_KEEP_ALIVE, self._times.attempt_s) as stream:
                    await stream.send(etcd.lease_request(lease))
                    data = await stream.receive(self._times.attempt_s)
                    if data is None:
                        raise EtcdFailure("DEADLINE_EXCEEDED", "no answer")
            except EtcdFailure as problem:
                failure = problem
                if problem.meaning is Meaning.LOGIN:
                    self._client.forget_login()
            else:
                answer = etcd.decode_lease(data)
                self._identity.on_header(answer.header)
                return answer.ttl_s > 0
        raise Unavailable(str(failure))

    async def end_lease(self, lease: int) -> None:
        """End a lease now, with its rows."""
        self._identity.check()
        try:
            await self._client.call(etcd.LEASE_REVOKE, etcd.lease_request(lease), etcd.decode_header)
        except EtcdFailure as problem:
            if problem.meaning is not Meaning.LEASE_ENDED:
                raise

    # -- following -----------------------------------------------------------------------------------------------------

    async def watch(self, after: int) -> AsyncGenerator[CoreCommit, None]:
        """The commits above a position, in order. Raises CommitsMissed."""
        cursor = WatchCursor(after, self._keys)
        pauses = Backoff(_WATCH_FIRST_S, _WATCH_MAX_S, spread=True)
        is_known = is_refused = False
        while True:
            try:
                if not is_known:
                    await self._must_exist(after)
                    is_known = True
                async with aclosing(self._follow(cursor)) as answers:
                    async for commits in answers:
                        pauses.reset()
                        is_refused = False
                        for commit in commits:
                            yield commit
            except WatchCancelled as problem:
                if is_refused and "permission denied" in problem.reason:
                    raise refusal(EtcdFailure("PERMISSION_DENIED", problem.reason), self._user.name) from None
                is_refused = True  # etcd says so too if the token is no longer valid: try once with a new one
                self._client.forget_login()
            except (EtcdFailure, Unavailable) as problem:
                log.warning("the tables of the cluster cannot be followed: %s", problem)
            await asyncio.sleep(pauses.next())

    async def _must_exist(self, position: int) -> None:
        answer = await self._linearizable(etcd.RANGE, etcd.range_request(self._keys.key(STORE, RESTORES)), etcd.decode_range)
        if position > answer.header.revision:
            raise CommitsMissed(f"the latest commit is {answer.header.revision}, so there are none after {position}")

    async def _follow(self, cursor: WatchCursor) -> AsyncGenerator[list[CoreCommit], None]:
        """The commits of one stream, until it ends."""
        self._identity.check()
        async with self._client.stream(etcd.WATCH) as stream:
            await stream.send(etcd.watch_request(*self._keys.all(), cursor.open()))
            data = await stream.receive(self._times.attempt_s)
            while True:
                if data is None:
                    raise EtcdFailure("DEADLINE_EXCEEDED", "the watch is silent")
                answer = etcd.decode_watch(data)
                self._identity.on_header(answer.header)
                commits = cursor.take(answer)
                for event in answer.events:
                    if not event.is_deleted:
                        self._identity.on_written(event.row.key, event.row.mod_revision, event.row.value)
                yield commits
                data = await self._next(stream)

    async def _next(self, stream: EtcdStream) -> bytes | None:
        data = await stream.receive(self._times.silence_s)
        if data is None:  # a member that hangs is silent, too
            await stream.send(etcd.progress_request())
            data = await stream.receive(self._times.attempt_s)
        return data

    # -- is it the same store? -----------------------------------------------------------------------------------------

    async def accept_restored(self) -> None:
        """Take the store as it is after a restore, and count it, once for all cores (C8). List and watch everything again."""
        before, self._identity = self._identity, StoreIdentity()
        try:
            await self._count_restore(before.incarnation[1] + 1)
        except BaseException:
            self._identity = before
            raise

    async def _count_restore(self, least: int) -> None:
        while True:
            row = await self.get(STORE, RESTORES)
            counted = int.from_bytes(row.value, "big") if row is not None else 0
            if counted < least:
                condition = Condition(STORE, RESTORES, revision_of(row))
                if await self.commit([condition], [PutRow(STORE, RESTORES, least.to_bytes(8, "big"))]) is None:
                    continue
            self._identity.on_counted(max(counted, least))
            return

    async def _check(self, send: Send) -> None:
        """Judge a new connection before it is used."""
        self._identity.check()
        status = etcd.decode_status(await send(etcd.STATUS, b""))
        self._identity.on_header(status.header)
        check_version(status.version)
        known = self._identity.revision
        row = etcd.decode_range(await send(etcd.RANGE, etcd.range_request(self._keys.key(STORE, RESTORES))))
        self._identity.on_linearizable(row.header, known)
        self._identity.on_restores(int.from_bytes(row.rows[0].value, "big") if row.rows else 0)
        await self._check_witness(send)

    async def _check_witness(self, send: Send) -> None:
        witness = self._identity.witness
        if witness is None:
            return
        try:
            data = await send(etcd.RANGE, etcd.range_request(witness.key, revision=witness.revision))
        except EtcdFailure as problem:
            if problem.meaning is Meaning.FUTURE:
                self._identity.on_witness_missing(witness)
            if problem.meaning is not Meaning.COMPACTED:
                raise
            self._identity.on_witness_compacted(witness)
        else:
            rows = etcd.decode_range(data).rows
            self._identity.on_witness(rows[0] if rows else None, witness)


def check_version(version: str) -> None:
    """Raise ConfigError for an etcd that may lose data: before 3.4.22, and 3.5.0 to 3.5.5."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    numbers = tuple(int(each) for each in found.groups()) if found else (0, 0, 0)
    if numbers < (3, 4, 22) or (3, 5, 0) <= numbers < (3, 5, 6):
        raise ConfigError("cluster.etcd", f"etcd {version} may lose data", "use 3.4.22 or later, but none from 3.5.0 to 3.5.5")
