"""The core's side of the conversation: every question of the history service is answered from the node's own state.

The service asks and decides nothing about rights by itself: passwords, rules and bans are the same, at the same moment, as for
a client that connects with MQTT.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from braidmq.access.contract import Credentials, Granted, Refused, Rules, Verdict
from braidmq.base.errors import UsageError
from braidmq.history import messages
from braidmq.history.burden import Burden
from braidmq.history.tokens import Tokens
from braidmq.storage.changes import Refusal
from braidmq.storage.named_readers import NamedReaders

LISTENER: Final = "history"
# A token of a handshake is for the calls that follow it; longer ones are made by an operator.
_TOKEN_S: Final = 24 * 3600.0


class Access(Protocol):
    """What is asked of access control."""

    async def authenticate(self, credentials: Credentials) -> Verdict:
        """Check plain credentials."""

    def rules_for(self, client_id: str, user_name: str | None) -> Rules:
        """The rules in force now."""

    def is_still_allowed(self, credentials: Credentials, user_name: str | None) -> bool:
        """Whether a user who was let in before would be let in now."""


class Log(Protocol):
    """What is asked of the log."""

    readers: NamedReaders

    @property
    def watermarks(self) -> dict[int, int]:
        """The last committed timestamp of each shard."""

    def flush(self) -> None:
        """Write what was collected."""


class Answers:
    """Answers questions, on the node's loop."""

    def __init__(
        self, log: Log, access: Access, tokens: Tokens, *, anonymous_allowed: bool, burden: Burden | None = None
    ) -> None:
        self._log = log
        self._access = access
        self._tokens = tokens
        self._anonymous_allowed = anonymous_allowed
        self._burden = burden or Burden()

    async def to(self, question: messages.AnyQuestion) -> messages.AnyAnswer:
        """The answer; never raises for what a reader has sent."""
        match question:
            case messages.AskWatermarks():
                return messages.Watermarks(self._log.watermarks, self._burden.is_high())
            case messages.Authenticate():
                return await self._authenticate(question)
            case messages.MayRead():
                return self._may_read(question)
            case messages.NoteReader(name, user_name, positions):
                return await self._note(name, user_name, positions)

    async def _authenticate(self, question: messages.Authenticate) -> messages.Granted | messages.Denied:
        password = question.password.encode() if question.password is not None else None
        credentials = self._credentials(question.reader, question.peer_host, question.user_name, password)
        if question.token is not None:
            user_name = self._tokens.read(question.token)
            if user_name is None or not self._access.is_still_allowed(credentials, user_name):
                return messages.Denied("the token is not valid, or no longer")
            return messages.Granted(user_name)
        match await self._access.authenticate(credentials):
            case Granted(user_name):
                return messages.Granted(user_name, self._tokens.make(user_name, _TOKEN_S) if user_name else "")
            case Refused(_, detail):
                return messages.Denied(detail)

    def _may_read(self, question: messages.MayRead) -> messages.Filters | messages.Denied:
        shown = self._credentials(question.reader, question.peer_host)
        if not self._access.is_still_allowed(shown, question.user_name):
            return messages.Denied("not let in any more")
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

    async def _note(self, name: str, user_name: str | None, wanted: dict[int, int]) -> messages.Noted | messages.Denied:
        owner = self._log.readers.owner(name)
        if owner not in (None, user_name):
            return messages.Denied(f"{name!r} is the reader of another user; choose another name")
        # Nobody has dealt with what is not there yet. A shard that has had nothing is at 1.
        marks = self._log.watermarks
        positions = {shard: min(position, max(marks.get(shard, position), 1)) for shard, position in wanted.items()}
        done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def settle(refusal: Refusal | None = None) -> None:
            if not done.done():
                done.set_result(refusal)

        try:
            self._log.readers.save(name, positions, owner=user_name, pins=True, on_saved=settle, on_refused=settle)
            self._log.flush()
        except UsageError as problem:
            return messages.Denied(str(problem))
        refusal = await done
        return messages.Noted() if refusal is None else messages.Denied(refusal.reason)
