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
            case messages.MaySubscribe(reader, user_name, filters):
                rules = self._access.rules_for(reader, user_name)
                return messages.Filters([each for each in filters if not rules.may_subscribe(each)])
            case messages.NoteReader(name, positions):
                return await self._note(name, positions)

    async def _authenticate(self, question: messages.Authenticate) -> messages.Granted | messages.Denied:
        credentials = Credentials(
            client_id=question.reader,
            user_name=question.user_name,
            password=question.password.encode() if question.password is not None else None,
            peer_host=question.peer_host,
            listener=LISTENER,
            anonymous_allowed=self._anonymous_allowed,
        )
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

    async def _note(self, name: str, positions: dict[int, int]) -> messages.Noted | messages.Denied:
        done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def settle(refusal: Refusal | None = None) -> None:
            if not done.done():
                done.set_result(refusal)

        try:
            self._log.readers.save(name, positions, pins=True, on_saved=settle, on_refused=settle)
            self._log.flush()
        except UsageError as problem:
            return messages.Denied(str(problem))
        refusal = await done
        return messages.Noted() if refusal is None else messages.Denied(refusal.reason)
