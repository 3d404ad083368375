"""Answers the requests of the history service from the node's own state.

The service makes no access decisions itself: the passwords, rules and bans that apply to a reader at any moment are those that
apply to an MQTT client.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from braidmq.access.contract import Credentials, Granted, Refused, Rules, Verdict
from braidmq.base.errors import UsageError
from braidmq.history import messages
from braidmq.history.node_side.cluster_reads import ClusterReads
from braidmq.history.node_side.node_load import NodeLoad
from braidmq.history.node_side.tokens import Tokens
from braidmq.storage.rows.changes import WriteRefusal
from braidmq.storage.rows.named_readers import NamedReaders

LISTENER: Final = "history"
# A handshake returns a token for the calls that follow it. Operators can create tokens that last longer.
_TOKEN_S: Final = 24 * 3600.0


class ReaderAccess(Protocol):
    """What the answers need from access control."""

    @property
    def has_users(self) -> bool:
        """Whether readers can log in."""

    async def authenticate(self, credentials: Credentials) -> Verdict:
        """Check plain credentials."""

    def rules_for(self, client_id: str, user_name: str | None) -> Rules:
        """The rules in force now."""

    def is_still_allowed(self, credentials: Credentials, user_name: str | None) -> bool:
        """Whether a user who was accepted before would be accepted now."""

    def fingerprint(self, user_name: str) -> bytes | None:
        """A digest of a user's entry in the password file; None for an unknown user."""


class Log(Protocol):
    """What the answers need from the log."""

    readers: NamedReaders

    @property
    def watermarks(self) -> dict[int, int]:
        """The last committed timestamp of each shard."""

    def flush(self) -> None:
        """Write the collected changes."""


class Answers:
    """Answers questions on the node's event loop."""

    def __init__(
        self,
        log: Log,
        access: ReaderAccess,
        tokens: Tokens,
        *,
        anonymous_allowed: bool,
        readers_max: int,
        burden: NodeLoad | None = None,
        cluster: ClusterReads | None = None,
    ) -> None:
        """``cluster``: the other cores, if there are any."""
        self._log = log
        self._access = access
        self._tokens = tokens
        self._anonymous_allowed = anonymous_allowed
        self._readers_max = readers_max
        self.readers_refused = 0
        self._burden = burden or NodeLoad()
        self._cluster = cluster

    async def to(self, question: messages.AnyQuestion) -> messages.AnyAnswer:
        """The answer to a request; never raises because of a reader's input."""
        match question:
            case messages.AskWatermarks():
                return messages.Watermarks(self._log.watermarks, self._burden.is_high())
            case messages.Authenticate():
                return await self._authenticate(question)
            case messages.MayRead():
                return self._may_read(question)
            case messages.SaveReader() if self._cluster is not None:
                return await self._cluster.save(question, self.save)
            case messages.SaveReader():
                return await self.save(question)
            case messages.AskCore() if self._cluster is not None:
                return await self._cluster.ask(question)
            case messages.AskCore():
                return messages.CoreAway("there is only one core")

    async def _authenticate(self, question: messages.Authenticate) -> messages.ReaderGranted | messages.Denied:
        password = question.password.encode() if question.password is not None else None
        credentials = self._credentials(question.reader, question.peer_host, question.user_name, password)
        if question.token is not None:
            user_name = self._tokens.read(question.token, self._access.fingerprint)
            if user_name is None or not self._access.is_still_allowed(credentials, user_name):
                return messages.Denied("the token is invalid or has expired")
            return messages.ReaderGranted(user_name)
        match await self._access.authenticate(credentials):
            case Granted(user_name):
                return messages.ReaderGranted(user_name, self._token_for(user_name))
            case Refused(_, detail):
                return messages.Denied(detail)

    def _token_for(self, user_name: str | None) -> str:
        fingerprint = None if user_name is None else self._access.fingerprint(user_name)
        return "" if user_name is None or fingerprint is None else self._tokens.make(user_name, fingerprint, _TOKEN_S)

    def _may_read(self, question: messages.MayRead) -> messages.Filters | messages.Denied:
        shown = self._credentials(question.reader, question.peer_host)
        if not self._access.is_still_allowed(shown, question.user_name):
            return messages.Denied("access was withdrawn")
        rules = self._access.rules_for(question.reader, question.user_name)
        return messages.Filters([each for each in question.filters if not rules.may_subscribe(each)])

    def _credentials(
        self, reader: str, peer_host: str, user_name: str | None = None, password: bytes | None = None
    ) -> Credentials:
        return Credentials(
            client_id=reader,
            user_name=user_name,
            password=password,
            peer_host=peer_host,
            listener=LISTENER,
            anonymous_allowed=self._anonymous_allowed,
        )

    def _refusal_of_reader(self, name: str, user_name: str | None) -> str:
        """Why this user may not create or move the reader with this name; empty if they may."""
        readers = self._log.readers
        if readers.owner(name) not in (None, user_name):
            return f"{name!r} belongs to another user; choose another reader name"
        if readers.is_owned_by(name, user_name):
            return ""
        if user_name is None and self._access.has_users:
            return f"{name!r} needs a user because retention waits for named readers: log in, or read without a name"
        if readers.owned(user_name) >= self._readers_max:
            who = f"user {user_name!r} has" if user_name is not None else "readers without a user have"
            return (
                f"{who} {self._readers_max} named readers, the maximum of history.named_readers_max: "
                "forget unused ones with `braidmq history forget`"
            )
        return ""

    async def save(self, note: messages.SaveReader) -> messages.Noted | messages.Denied:
        """Store the positions of a reader in shards of this core."""
        name, user_name, wanted = note.name, note.user_name, note.positions
        refused = self._refusal_of_reader(name, user_name)
        if refused:
            self.readers_refused += 1
            return messages.Denied(refused)
        # A reader cannot be ahead of the watermark. The position in a shard that has never had a record is 1.
        marks = self._log.watermarks
        positions = {shard: min(position, max(marks.get(shard, position), 1)) for shard, position in wanted.items()}
        done: asyncio.Future[WriteRefusal | None] = asyncio.get_running_loop().create_future()

        def settle(refusal: WriteRefusal | None = None) -> None:
            if not done.done():
                done.set_result(refusal)

        try:
            self._log.readers.save(
                name, positions, owner=user_name, filters=note.filters, pins=True, on_saved=settle, on_refused=settle
            )
            self._log.flush()
        except UsageError as problem:
            return messages.Denied(str(problem))
        refusal = await done
        return messages.Noted() if refusal is None else messages.Denied(refusal.reason)
