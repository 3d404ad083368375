"""Decides, once per route, whether messages of a topic take the slow path, and why, and whether they are recorded."""

from __future__ import annotations

from braidmq.broker.connection.trace import Tracer
from braidmq.broker.live_settings import LiveSettings
from braidmq.broker.messages.flags import HOOK_DELIVER, HOOK_PUBLISH, TRACED
from braidmq.broker.messages.hooks import Hooks
from braidmq.lane.path.channel import ASK_INNER
from braidmq.lane.routing.routes import HISTORY
from braidmq.mqtt.topics import matches


class TopicInspector:
    """Gives the flags of a topic's route; if an answer may have changed, the routes must be refreshed."""

    def __init__(self, hooks: Hooks, tracer: Tracer, live: LiveSettings) -> None:
        self._hooks = hooks
        self._tracer = tracer
        self._live = live

    def inspect(self, topic: bytes) -> int:
        """The flags of a topic."""
        hooks, tracer = self._hooks, self._tracer
        flags = ASK_INNER if topic.startswith(b"$") else 0
        if self._is_history(topic):
            flags |= HISTORY
        if hooks.publishes or hooks.delivers or tracer.filters:
            name = topic.decode()
            if hooks.concerns(hooks.publishes, name):
                flags |= HOOK_PUBLISH
            if hooks.concerns(hooks.delivers, name):
                flags |= HOOK_DELIVER
            if tracer.concerns(name):
                flags |= TRACED
        return flags

    def _is_history(self, topic: bytes) -> bool:
        topics = self._live.now.history.topics
        if "#" in topics and not topic.startswith(b"$"):
            return True
        return bool(topics) and any(matches(topic_filter, topic.decode()) for topic_filter in topics)
