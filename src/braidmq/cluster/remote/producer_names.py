"""Producers whose name another core has than their client id: the batch is opened there first, then the client id is claimed.

The row of a name's open batch is in the shard of the name, and the numbers of each part are in the shard of its client id. So
the parts of one producer are spread over all cores. Parts only look at the batch when they connect: which batch is open, whose
the name is, and how many parts there are is decided by one core, and each part's own numbers keep its messages from being
recorded twice. Keys are looked up for each message; they and their records are in one shard, and take no detour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import structs

from braidmq.access.contract import Refused
from braidmq.base.errors import Unavailable
from braidmq.broker.messages.producer_books import NotTaken
from braidmq.broker.session.ports import Claim, Grant, GrantEnding, Registry
from braidmq.mqtt.producer_protocol import PARTS, Request
from braidmq.mqtt.reasons import Reason
from braidmq.net.calls import CallError
from braidmq.net.proto_v1_batches import BatchOpened, BatchRefused, OpenBatch

AskBatch = Callable[[OpenBatch], Awaitable[BatchOpened | BatchRefused]]  # raises Unavailable and CallError

_AGAIN_S: Final = 0.25


class ProducerNames:
    """Implements the broker's ``Registry`` on a node with several cores, in front of its registry of client ids."""

    def __init__(
        self,
        registry: Registry,
        loop: asyncio.AbstractEventLoop,
        asker_of: Callable[[str, str], AskBatch | None],
        wait_s: float,
    ) -> None:
        """``asker_of``: asks the core of a name; None if that core also has the client id.

        ``wait_s``: how long a CONNECT waits for a core that is away.
        """
        self._registry = registry
        self._loop = loop
        self._asker_of = asker_of
        self._wait_s = wait_s

    def claim(self, claim: Claim) -> Grant | Refused | Awaitable[Grant | Refused]:
        """Ask for a client id."""
        asked = claim.producer
        if asked is not None and asked.name and not asked.is_keyed:
            ask = self._asker_of(asked.name, claim.client_id)
            if ask is not None:
                return self._loop.create_task(self._claim_part(claim, asked, ask))
        return self._registry.claim(claim)

    def commit(self, grant: Grant) -> bool:
        """Whether the grant still counts."""
        return self._registry.commit(grant)

    def end(self, grant: Grant, *, keeps_session: bool, ending: GrantEnding) -> None:
        """The connection gives the client id up."""
        self._registry.end(grant, keeps_session=keeps_session, ending=ending)

    async def _claim_part(self, claim: Claim, asked: Request, ask: AskBatch) -> Grant | Refused:
        opened = await self._open(OpenBatch(asked.name, asked.base, asked.part, claim.user_name), ask)
        if isinstance(opened, Refused):
            return opened
        found = self._registry.claim(structs.replace(claim, producer=structs.replace(asked, name="", part=-1)))
        grant = found if isinstance(found, Grant | Refused) else await found
        if isinstance(grant, Refused) or grant.producer is None:
            return grant
        told = (*grant.producer.told, (PARTS, str(opened.parts)))
        return structs.replace(grant, producer=structs.replace(grant.producer, told=told))

    async def _open(self, request: OpenBatch, ask: AskBatch) -> BatchOpened | Refused:
        until = self._loop.time() + self._wait_s
        while True:
            try:
                answer = await ask(request)
            except Unavailable as problem:
                if self._loop.time() + _AGAIN_S > until:
                    return Refused(Reason.SERVER_UNAVAILABLE, f"the core of the producer name is not reachable: {problem.detail}")
            except CallError as problem:
                return Refused(Reason.UNSPECIFIED_ERROR, f"the core of the producer name refuses it: {problem}")
            else:
                if isinstance(answer, BatchOpened):
                    return answer
                return NotTaken(Reason(answer.reason), answer.detail, tuple(answer.told))
            await asyncio.sleep(_AGAIN_S)
