"""Opens batches under the names of producers, for parts whose client ids other cores have (`remote.producer_names`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from braidmq.base.errors import UsageError
from braidmq.broker.messages.producer_books import NotTaken, ProducerBooks
from braidmq.broker.persistence import TurnWriter
from braidmq.cluster.home.sessions.held_session import KeyedOnNode
from braidmq.mqtt.producer_protocol import Request
from braidmq.mqtt.reasons import Reason
from braidmq.net.proto_v1_batches import BatchOpened, BatchRefused, OpenBatch

_NOT_STORED: Final = NotTaken(Reason.QUOTA_EXCEEDED, "the batch of the producer cannot be stored")


class ProducerBatches:
    """The batches of the names that this core has."""

    def __init__(
        self,
        books: ProducerBooks,
        writer: TurnWriter,
        leads: Callable[[str], bool],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``leads``: whether a name is this core's."""
        self._books = books
        self._writer = writer
        self._leads = leads
        self._loop = loop

    def open(self, request: OpenBatch) -> Awaitable[BatchOpened | BatchRefused]:
        """A part connects for a batch; answered when that is on disk. Raises UsageError if the name is another core's."""
        if not self._leads(request.name):
            raise UsageError("another core has this producer name")
        asked = Request(request.base, name=request.name, part=request.part)
        answer: asyncio.Future[BatchOpened | BatchRefused] = self._loop.create_future()

        def settle(found: BatchOpened | NotTaken) -> None:
            told = BatchRefused(found.reason, found.detail, list(found.told)) if isinstance(found, NotTaken) else found
            if not answer.done():  # else the node's connection has ended
                answer.set_result(told)

        def stored() -> None:
            settle(self._judge(asked, request.user_name) or BatchOpened(self._books.parts(asked)))  # a later one may be open now

        not_taken = self._judge(asked, request.user_name)
        if not_taken is not None:
            settle(not_taken)
        else:
            rows = self._books.opening(KeyedOnNode(request.user_name, _no_close), asked)
            self._writer.change(rows, stored, lambda refusal: settle(_NOT_STORED))
        return answer

    def _judge(self, asked: Request, user_name: str | None) -> NotTaken | None:
        return self._books.judge(asked, "", user_name)  # the client id counts for keys alone


def _no_close(reason: int, detail: str) -> None:
    """No other producer ends the connection of a part."""
