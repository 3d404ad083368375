"""Sessions as operators see them: their backlogs in memory and in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from braidmq.broker.session.session import NEVER, Session, SessionTable
from braidmq.control.contract import Page, PageRequest, SessionDetail, SessionInfo
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.operations.descriptions import subscription_info, wall
from braidmq.operations.pages import page_of
from braidmq.storage.log import DurableLog

_DETAIL_SUBSCRIPTIONS: Final = 100
_SLICE_S: Final = 0.001
# How long to search the log for the first waiting message; after many records that do not match it stays unknown.
_SEARCH_S: Final = 0.5


class NodeSession(Struct, frozen=True):
    """A session on a node, and its positions in the log, by shard."""

    info: SessionInfo
    positions: list[int]


class NodeSessionDetail(Struct, frozen=True):
    """The same with more details; ``filters``: what it reads the log for."""

    detail: SessionDetail
    positions: list[int]
    filters: list[str]


class BacklogRequest(Struct, frozen=True):
    """A reader of the log: what it reads, and from where."""

    filters: list[str]
    positions: list[int]


class CoreBacklog(Struct, frozen=True):
    """How far a reader is behind in the log of one core; ``oldest_at``: if it was searched for and found."""

    records: int
    lag_s: float
    oldest_at: float | None = None


async def list_sessions(sessions: SessionTable, log: DurableLog, page: PageRequest) -> Page[SessionInfo]:
    """Sessions in the order of their client ids; does not search for the oldest waiting message of each."""
    found = await node_sessions(sessions, page)
    backlogs = await measure_backlogs([each.positions for each in found.items], log)
    items = [with_backlogs(each.info, [backlog]) for each, backlog in zip(found.items, backlogs, strict=True)]
    return Page(items, found.cursor)


async def show_session(sessions: SessionTable, log: DurableLog, client_id: str) -> SessionDetail | None:
    """One session, or None if there is none; searches for its oldest waiting message, for a limited time."""
    found = node_session(sessions, client_id)
    if found is None:
        return None
    backlog = await search_backlog(BacklogRequest(found.filters, found.positions), log)
    return replace(found.detail, session=with_backlogs(found.detail.session, [backlog]))


async def node_sessions(sessions: SessionTable, page: PageRequest) -> Page[NodeSession]:
    """Sessions in the order of their client ids, without their backlogs in the log."""
    names, cursor = await page_of([session.client_id for session in sessions], page)
    found = [session for name in names if (session := sessions.get(name)) is not None]
    return Page([NodeSession(session_info(session), positions_of(session)) for session in found], cursor)


def node_session(sessions: SessionTable, client_id: str) -> NodeSessionDetail | None:
    """One session without its backlog in the log, or None if there is none."""
    session = sessions.get(client_id)
    if session is None:
        return None
    return NodeSessionDetail(session_detail(session), positions_of(session), filters_of(session))


async def measure_backlogs(readers: Iterable[Sequence[int]], log: DurableLog) -> list[CoreBacklog]:
    """How far readers at these positions are behind this core's log; does not search for their oldest waiting messages."""
    found: list[CoreBacklog] = []
    deadline = monotonic() + _SLICE_S
    for positions in readers:
        found.append(_measure(positions, log))
        if monotonic() >= deadline:  # computing how far a session is behind examines every epoch
            await asyncio.sleep(0)
            deadline = monotonic() + _SLICE_S
    return found


async def search_backlog(reader: BacklogRequest, log: DurableLog) -> CoreBacklog:
    """How far one reader is behind; searches for its oldest waiting message, for a limited time."""
    oldest_at = await _find_oldest(reader.filters, reader.positions, log)
    return replace(_measure(reader.positions, log), oldest_at=oldest_at)


def with_backlogs(info: SessionInfo, backlogs: Sequence[CoreBacklog]) -> SessionInfo:
    """Add how far a session is behind: in the log of one core, or in those of several, each of which has some of the shards."""
    return replace(
        info,
        records_behind=sum(each.records for each in backlogs),
        lag_s=max((each.lag_s for each in backlogs), default=0.0),
        oldest_at=min((each.oldest_at for each in backlogs if each.oldest_at is not None), default=None),
    )


def session_detail(session: Session) -> SessionDetail:
    """One session, without its backlog in the log."""
    client_id = session.client_id
    written = sorted(session.subscriptions)[:_DETAIL_SUBSCRIPTIONS]
    return SessionDetail(
        session=session_info(session),
        subscriptions=[subscription_info(client_id, each, session.subscriptions[each]) for each in written],
        will_topic=session.will.topic if session.will is not None else None,
        messages_dropped=session.flow.dropped,
    )


def session_info(session: Session) -> SessionInfo:
    """One session, without its backlog in the log."""
    connection = session.connection
    is_lasting = session.expiry_s == NEVER
    ended_at = wall(session.ended_at) if connection is None else None
    return SessionInfo(
        client_id=session.client_id,
        durable=session.is_durable,
        connected=connection is not None,
        user_name=session.user_name,
        session_expiry_s=None if is_lasting else float(session.expiry_s),
        connected_at=wall(connection.opened_at) if connection is not None else None,
        disconnected_at=ended_at,
        expires_at=None if is_lasting or ended_at is None else ended_at + session.expiry_s,
        subscriptions=len(session.subscriptions),
        inflight=session.flow.inflight_messages(),
        queue_messages=session.flow.queue_messages(),
    )


def positions_of(session: Session) -> list[int]:
    """The session's positions in the log, by shard; empty if it does not read the log."""
    return list(session.flow.cursor()) if isinstance(session.flow, LogFlow) else []


def filters_of(session: Session) -> list[str]:
    """What the session reads the log for."""
    return sorted({each.topic_filter.decode() for each in session.subscriptions.values() if each.group is None})


def _measure(positions: Sequence[int], log: DurableLog) -> CoreBacklog:
    if not positions:
        return CoreBacklog(0, 0.0)
    lags = log.readers.lag_at(dict(enumerate(positions))).values()
    return CoreBacklog(sum(lag.records_estimate for lag in lags), max((lag.behind_us for lag in lags), default=0) / 1e6)


async def _find_oldest(filters: Sequence[str], positions: Sequence[int], log: DurableLog) -> float | None:
    """When the first message that waits for the session in the log was recorded; None if there is none or it is not found."""
    if not filters or len(positions) != log.shards:
        return None
    replay = log.replay(filters, dict(enumerate(positions)), with_session_only=True)
    deadline = monotonic() + _SEARCH_S
    while not replay.is_caught_up and monotonic() < deadline:
        found = replay.next(1)
        if found:
            return found[0][1].timestamp / 1e6
        await asyncio.sleep(0)
    return None
