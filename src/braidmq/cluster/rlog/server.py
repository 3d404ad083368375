"""Answers watches: one agent for each replica, and rounds that all of them share.

A round takes what each origin's log has got since the round before. The caller makes one at the end of each turn of its loop in
which something was written or applied, and pumps, in this turn and the following ones, while ``is_busy``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from braidmq.cluster.rlog.agent import PACE, Agent, AgentPace, message_of
from braidmq.cluster.rlog.origin_log import OriginLog
from braidmq.cluster.rlog.origins import is_durable_origin, written_with
from braidmq.cluster.rlog.tables import Tables
from braidmq.net.proto_v1 import Applied, Entries, NotWatched, Position, RlogMessage, RlogWatch

Watcher = TypeVar("Watcher", bound=Hashable)


class RlogServer(Generic[Watcher]):
    """Serves this node's tables to replicas. A watcher is whatever the caller knows a replica's connection by."""

    def __init__(
        self,
        tables: Tables,
        writes: Callable[[str], bool],
        on_applied: Callable[[Watcher, str, Position], None],
        pace: AgentPace = PACE,
    ) -> None:
        """``writes``: whether this node is the writer of an origin. ``on_applied``: a replica has come this far."""
        self.agents: dict[Watcher, Agent] = {}
        self._tables = tables
        self._writes = writes
        self._on_applied = on_applied
        self._pace = pace
        self._told: dict[str, Position] = {}  # up to where the rounds have come
        self._busy: dict[Watcher, None] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a pump would send something."""
        return bool(self._busy)

    @property
    def is_loading(self) -> bool:
        """Whether a replica gets a snapshot."""
        return any(self.agents[watcher].is_loading for watcher in self._busy)

    def receive(self, watcher: Watcher, number: int, message: RlogMessage) -> None:
        """Handle what a replica says under the number of its watch."""
        match message:
            case RlogWatch():
                scope = self._scope(message)
                self.agents[watcher] = Agent(number, self._tables, scope, message.vector, self._pace)
                self._busy[watcher] = None
            case Applied() if (agent := self._agent(watcher, number)) is not None:
                agent.on_applied(message)
                if agent.can_send:
                    self._busy[watcher] = None
                self._on_applied(watcher, message.origin, message.position)
            case NotWatched() if self._agent(watcher, number) is not None:
                self.lost(watcher)

    def lost(self, watcher: Watcher) -> None:
        """The replica's connection is gone, and its agent with it."""
        self.agents.pop(watcher, None)
        self._busy.pop(watcher, None)

    def _agent(self, watcher: Watcher, number: int) -> Agent | None:
        agent = self.agents.get(watcher)
        return agent if agent is not None and agent.number == number else None

    def _scope(self, watch: RlogWatch) -> Callable[[str], bool]:
        """A core gets each origin from its writer (C7), a replicant what concerns it, but not what it writes itself."""
        if watch.is_core:
            return self._writes
        own = written_with(watch.own)
        return lambda origin: origin not in own and not is_durable_origin(origin)

    def round(self) -> Iterator[tuple[Watcher, int, RlogMessage]]:
        """What is new since the last round, for every replica."""
        messages: list[Entries] = []
        broken: list[str] = []
        for origin in sorted(self._tables.take_touched()):
            log = self._tables.get(origin)
            if log is None:
                self._told.pop(origin, None)
                continue
            told, self._told[origin] = self._told.get(origin), log.position
            news = _news_of(origin, log, told, self._pace.batch_bytes)
            if news is None:
                broken.append(origin)
            elif news.keys:
                messages.append(news)
        if not messages and not broken:
            return
        for watcher, agent in self.agents.items():
            for message in agent.follow(messages, broken):
                yield watcher, agent.number, message
            if agent.can_send:
                self._busy[watcher] = None

    def pump(self) -> Iterator[tuple[Watcher, int, RlogMessage]]:
        """A bounded piece for each replica that lacks something from before the last round."""
        for watcher in tuple(self._busy):
            agent = self.agents[watcher]
            for message in agent.pump():
                yield watcher, agent.number, message
            if not agent.can_send:
                self._busy.pop(watcher, None)


def _news_of(origin: str, log: OriginLog, told: Position | None, bytes_max: int) -> Entries | None:
    """The origin's entries since the last round, as one message; None if one message cannot say them."""
    if told is None or told.incarnation != log.incarnation or told.sequence > log.sequence or not log.reaches(told.sequence):
        return None
    entries = log.after(told.sequence, bytes_max)
    if told.sequence + len(entries) < log.sequence:
        return None
    return message_of(origin, log.incarnation, told.sequence, entries)
