"""Hooks for tests, some of them to be named in a configuration."""

from __future__ import annotations

from queue import SimpleQueue

from braidmq.broker.messages.hooks import Client, Hook


class Recorder(Hook):
    """Notes every event."""

    def __init__(self) -> None:
        self.events: SimpleQueue[tuple[str, ...]] = SimpleQueue()

    def connect(self, client: Client) -> int:
        """Note it and let the client in."""
        self.events.put(("connect", client.client_id))
        return 0

    def disconnect(self, client: Client, reason: int) -> None:
        """Note who and why."""
        self.events.put(("disconnect", client.client_id, f"0x{reason:02X}"))

    def session_created(self, client_id: str) -> None:
        """Note it."""
        self.events.put(("created", client_id))

    def session_resumed(self, client_id: str) -> None:
        """Note it."""
        self.events.put(("resumed", client_id))

    def session_ended(self, client_id: str) -> None:
        """Note it."""
        self.events.put(("ended", client_id))


class Doorkeeper(Hook):
    """Refuses one client id."""

    def connect(self, client: Client) -> int:
        """0x8A for the banned one."""
        return 0x8A if client.client_id == "unwelcome" else 0
