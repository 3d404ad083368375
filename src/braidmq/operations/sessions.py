"""Sessions as operators see them: their backlogs in memory and in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Final

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


async def list_sessions(sessions: SessionTable, log: DurableLog, page: PageRequest) -> Page[SessionInfo]:
    """Sessions in the order of their client ids; does not search for the oldest waiting message of each."""
    names, cursor = await page_of([session.client_id for session in sessions], page)
    found: list[SessionInfo] = []
    deadline = monotonic() + _SLICE_S
    for name in names:
        session = sessions.get(name)
        if session is not None:
            found.append(with_backlog(session_info(session), positions_of(session), log))
        if monotonic() >= deadline:  # computing how far a session is behind examines every epoch
            await asyncio.sleep(0)
            deadline = monotonic() + _SLICE_S
    return Page(found, cursor)


async def show_session(sessions: SessionTable, log: DurableLog, client_id: str) -> SessionDetail | None:
    """One session, or None if there is none; searches for its oldest waiting message, for a limited time."""
    session = sessions.get(client_id)
    if session is None:
        return None
    return await search_backlog(session_detail(session), filters_of(session), positions_of(session), log)


async def search_backlog(
    detail: SessionDetail, filters: Sequence[str], positions: Sequence[int], log: DurableLog
) -> SessionDetail:
    """Add to a session's description how far it is behind, and its oldest waiting message."""
    oldest_at = await _find_oldest(filters, positions, log)
    info = replace(with_backlog(detail.session, positions, log), oldest_at=oldest_at)
    return replace(detail, session=info)


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


def with_backlog(info: SessionInfo, positions: Sequence[int], log: DurableLog) -> SessionInfo:
    """Add how far a session at these positions is behind the log."""
    lags = log.readers.lag_at(dict(enumerate(positions))).values()
    return replace(
        info,
        records_behind=sum(lag.records_estimate for lag in lags),
        lag_s=max((lag.behind_us for lag in lags), default=0) / 1e6,
    )


def positions_of(session: Session) -> list[int]:
    """The session's positions in the log, by shard; empty if it does not read the log."""
    return list(session.flow.cursor()) if isinstance(session.flow, LogFlow) else []


def filters_of(session: Session) -> list[str]:
    """What the session reads the log for."""
    return sorted({each.topic_filter.decode() for each in session.subscriptions.values() if each.group is None})


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
