"""The sweep of a home's registry: slowly all the time, or at once if an operator asks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from braidmq.cluster.home.sessions.session_ports import ClaimAnswers
from braidmq.cluster.membership.member import Member
from braidmq.cluster.registry.home_claims import HomeClaims
from braidmq.cluster.registry.messages import Action, SweepAnswer
from braidmq.cluster.registry.sweep import RegistrySweep

_PAGE_S: Final = 1.0  # between two questions
_PASS_S: Final = 60.0  # between two passes over all nodes
_SILENT_S: Final = 5.0  # for an operator who waits


class SweptRegistry(Protocol):
    """Whose table is swept; `registry.HomeRegistry`."""

    def answers_of(self, node: Member) -> ClaimAnswers | None:
        """Where a node is told something."""
        ...

    def carry_out(self, actions: Iterable[Action[Member]]) -> None:
        """Carry decisions out, in order."""
        ...


class RegistryUpkeep:
    """Asks the nodes that are connected, one page at a time."""

    def __init__(self, claims: HomeClaims[Member], registry: SweptRegistry) -> None:
        self.sweep = RegistrySweep(claims)
        self._claims = claims
        self._registry = registry
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []  # operators, until the pass is over

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sweep from now on."""
        self._loop = loop
        self._timer = loop.call_later(_PASS_S, self._next)

    def _next(self) -> None:
        assert self._loop is not None
        is_over = self.sweep.is_over
        if is_over:
            self._finish()
        self._ask(self._nodes())
        self._timer = self._loop.call_later(_PASS_S if self.sweep.is_over else _PAGE_S, self._next)

    def _nodes(self) -> Sequence[Member]:
        return [node for node in self._claims.nodes() if self._registry.answers_of(node) is not None]

    def _ask(self, nodes: Sequence[Member]) -> None:
        question = self.sweep.next_question(nodes)
        if question is not None and (answers := self._registry.answers_of(question.node)) is not None:
            answers.sweep(question.first, question.last)

    def swept(self, node: Member, answer: SweepAnswer) -> None:
        """A node has answered."""
        actions, unknown = self.sweep.answered(node, answer)
        self._registry.carry_out(actions)
        if unknown and (answers := self._registry.answers_of(node)) is not None:
            answers.redeclare(unknown)
        if self._waiting:
            self._go_on()

    def _go_on(self) -> None:
        """An operator waits: the next question follows the answer."""
        if self.sweep.is_over:
            self._finish()
        else:
            self._ask(())

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def run_now(self) -> bool:
        """Sweep all nodes that are connected; False if one of them has not answered within some seconds."""
        assert self._loop is not None
        nodes = self._nodes()
        if not nodes:
            return True
        done = self._loop.create_future()
        self.sweep.begin_again()
        self._waiting.append(done)
        self._ask(nodes)
        try:
            async with asyncio.timeout(_SILENT_S):
                await done
        except TimeoutError:
            return False
        return True

    def kick(self, client_id: str) -> bool:
        """End the channel that a client id has now on a node, and no later one; False if there is none."""
        assert self._loop is not None
        found = next(self._claims.channels_of(client_id), None)
        if found is None:
            return False
        entry = found[0]
        actions = self._claims.kick(client_id, entry.peer.node, entry.channel, self._loop.time())
        self._registry.carry_out(actions)
        return bool(actions)

    def lost(self, node: Member) -> None:
        """The node's connection is gone."""
        self.sweep.forget(node)
        if self._waiting:
            self._go_on()

    def close(self) -> None:
        """The core stops."""
        if self._timer is not None:
            self._timer.cancel()
        self._finish()
