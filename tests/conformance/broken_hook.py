"""A hook that fails for some clients, to see what the broker does about an error of its own."""

from __future__ import annotations

from braidmq.broker.messages.hooks import Client, Hook


class BrokenHook(Hook):
    """Fails while it is asked about a client whose identifier begins with ``unlucky``."""

    def connect(self, client: Client) -> int:
        """Let everybody in, or raise."""
        if client.client_id.startswith("unlucky"):
            raise RuntimeError("this hook is broken on purpose")
        return 0
