"""Delivers retained messages to new subscriptions, at the pace of their client."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from braidmq.access.contract import Authorizer
from braidmq.base.errors import Unavailable
from braidmq.broker.connection.connection import Connection
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.messages.pipeline import MessagePipeline
from braidmq.broker.messages.retained import Retained, RetainedFeed
from braidmq.broker.session.session import Session
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.path.state import State
from braidmq.lane.routing.delivery_rules import copy_qos, for_publisher
from braidmq.lane.routing.subscription import Subscription

log = logging.getLogger("braidmq.durability")

_END = object()
_SLICE = 256  # retained messages for one client before others have their turn
_BYTES_PER_COUNT = 4096  # of payload take as long as a message
_READ_AGAIN_S = 0.05  # after which a message that was being replaced is looked for again
_RETRY_S = 1.0  # after the log could not be read
_SEARCH_COST = 16  # a stretch of the search that finds nothing takes as long as this many messages


class RetainedDelivery:
    """Delivers ``Session.feeds``: the retained messages for a session's new subscriptions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: State,
        pipeline: MessagePipeline,
        hooks: Hooks,
        access: Authorizer,
        live: LiveSettings,
    ) -> None:
        self._loop = loop
        self._state = state
        self._pipeline = pipeline
        self._hooks = hooks
        self._access = access
        self._live = live

    def feed(self, connection: Connection, count: int = _SLICE) -> bool:
        """Deliver retained messages as long as the client accepts them; True if there are more and there is room."""
        session = connection.session
        if session is None or not connection.is_open or session.recall is not None:
            return False
        feeds = session.feeds
        flow = session.flow
        is_put_off = False
        while feeds and count > 0 and connection.has_room():
            feed = next(iter(feeds.values()))
            is_put_off = feed.is_waiting or not _takes_more(flow, feed)
            if is_put_off:
                break
            try:
                held = feed.next(_END)
            except Unavailable as problem:
                log.warning("%s has to wait for retained messages: %s", connection.client_id, problem.detail)
                feed.pause()
                self._loop.call_later(_RETRY_S, _go_on, session, feed)
                continue
            if held is _END:
                if feed.begin_again():
                    self._loop.call_later(_READ_AGAIN_S, _go_on, session, feed)
                else:
                    feeds.popitem(last=False)
                continue
            count -= 1 if held is not None else _SEARCH_COST
            if not isinstance(held, Retained):
                feed.await_source(partial(_go_on, session, feed))
                continue
            if held.is_on_disk and self._pipeline.is_retaining(held.message.topic):
                feed.put_off(held)  # the row of its replacement must not be shown before the commit
                continue
            try:
                message = self._served(connection, held, feed.subscription)
            except Unavailable as problem:  # for example, no file descriptor for a table: it may work in a moment
                log.warning("%s has to wait for retained messages: %s", connection.client_id, problem.detail)
                feed.wait_for(held)
                self._loop.call_later(_RETRY_S, _go_on, session, feed)
                continue
            if message is not None:
                count -= len(message.payload) // _BYTES_PER_COUNT
                flow.deliver_late(message, feed.subscription, copy_qos(message, feed.subscription), True)
                self._state.counters.delivered += 1
        connection.lane.flush()
        if not feeds:
            session.feeds = None
            return False
        return not is_put_off and connection.has_room()

    def _served(self, connection: Connection, held: Retained, subscription: Subscription) -> Message | None:
        """The message as this client gets it; None if No Local excludes it, or it is revoked, gone, or withheld by a hook."""
        if held.is_on_disk:
            loaded = self._pipeline.load_retained(held)
            if loaded is None:
                return None
            held = loaded
        message = held.message
        if for_publisher(subscription, message.publisher) is None:
            self._state.counters.dropped_no_local += 1
            return None
        if message.publisher and self._live.now.retained.recheck_publisher:
            rules = self._access.rules_for(message.publisher, held.user_name)
            if not (rules.unrestricted or rules.may_publish(message.topic.decode())):
                return None
        return self._pipeline.ask_deliver_hooks(message, connection.client_id) if self._hooks.delivers else message


def _takes_more(flow: LogFlow, feed: RetainedFeed) -> bool:
    """Whether a message can be sent at once, without taking space in the queue."""
    return flow.has_room() or (feed.subscription.qos == 0 and flow.queue_messages() == 0)


def _go_on(session: Session, feed: RetainedFeed) -> None:
    feed.is_waiting = False
    if feed.is_over and _forget(session, feed):
        return
    if session.connection is not None:
        session.connection.on_room()


def _forget(session: Session, feed: RetainedFeed) -> bool:
    """Drop a feed without messages, as most are, without a turn for it; True if that was the last."""
    feeds = session.feeds
    topic_filter = feed.subscription.topic_filter
    if feeds is not None and feeds.get(topic_filter) is feed:
        del feeds[topic_filter]
        if not feeds:
            session.feeds = None
    if session.feeds is not None:
        return False
    if session.connection is not None:
        session.connection.wants_room = session.wants_room
    return True
