"""Whether clients can log in as users: with a password, through a hook or by a certificate."""

from __future__ import annotations

from braidmq.base.config.settings import Settings
from braidmq.broker.messages.hooks import Hooks
from braidmq.broker.session.ports import AccessControl


class UserExistence:
    """Knows whether this node has users; sessions and producer names of anonymous clients are handled differently then."""

    def __init__(self, access: AccessControl, hooks: Hooks, settings: Settings) -> None:
        self._access = access
        self._hooks = hooks
        self.reconfigure(settings)

    def exist(self) -> bool:
        """Whether a client can log in under a name."""
        return self._access.has_users or bool(self._hooks.authenticates) or self.has_certificate_names

    def reconfigure(self, settings: Settings) -> None:
        """Whether listeners take user names from certificates may have changed."""
        listeners = settings.listeners
        kinds = (listeners.tcp, listeners.tls, listeners.ws, listeners.wss)  # without TLS, the PROXY header has the name
        self.has_certificate_names = any(each.user_from_certificate for kind in kinds for each in kind.values())
