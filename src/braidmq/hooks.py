"""The public API for hooks: ``from braidmq.hooks import Hook``. These names are stable; `docs/hooks.md` explains them."""

from __future__ import annotations

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.broker.messages.hooks import Client, Hook
from braidmq.lane.path.message import Message
from braidmq.mqtt.reasons import Reason

__all__ = ["Client", "Credentials", "Granted", "Hook", "Message", "Reason", "Refused", "Verdict"]
