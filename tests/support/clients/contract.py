"""What the tests ask of a client library: one small interface with an adapter for each library.

An adapter adds nothing: a feature that a library lacks is missing here too, and a value that it does not report is None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import Empty, SimpleQueue

import msgspec

from braidmq.mqtt.packets import MQTT5

# Far above any healthy answer on loopback, even of a program that has to be started first.
DEADLINE_S = 10.0


class Message(msgspec.Struct, frozen=True):
    """A message as it is sent or as it came. The properties are for MQTT 5."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    user_properties: tuple[tuple[str, str], ...] = ()
    response_topic: str | None = None
    correlation_data: bytes | None = None
    content_type: str | None = None
    expiry_s: int | None = None
    subscription_identifiers: tuple[int, ...] = ()  # only on what came


class Subscription(msgspec.Struct, frozen=True):
    """A filter to subscribe to. The identifier is for MQTT 5; 0: none."""

    topic_filter: str
    qos: int = 0
    identifier: int = 0


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Where and as whom to connect. ``expiry_s`` above 0 asks for a session that outlives the connection."""

    host: str
    port: int
    ws_port: int
    client_id: str
    version: int
    cut: Callable[[str], None]  # breaks the network connection of a client id
    clean_start: bool = True
    expiry_s: int = 0
    will: Message | None = None
    user_name: str | None = None
    password: str | None = None

    @property
    def is_v5(self) -> bool:
        """Whether properties may be used."""
        return self.version == MQTT5

    @property
    def clean_session(self) -> bool:
        """The flag of MQTT 3.1.1, which says both: begin anew, and do not outlive the connection."""
        return self.clean_start and not self.expiry_s


class Refused(Exception):
    """The broker did not let the client in, and the library said so."""


class RealClient(ABC):
    """One client. ``close`` must always be called in the end."""

    wants_will_on_goodbye = False  # its DISCONNECT has reason 0x04

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.received: SimpleQueue[Message] = SimpleQueue()

    @abstractmethod
    def connect(self, *subscriptions: Subscription) -> bool | None:
        """Connect, then subscribe; returns when all is acknowledged. Gives Session Present, or None if that is not told."""

    @abstractmethod
    def publish(self, message: Message) -> None:
        """Publish; returns when the broker has acknowledged it as the QoS asks."""

    @abstractmethod
    def disconnect(self) -> None:
        """Say goodbye and go."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind: no thread, no process, no socket."""

    def vanish(self) -> None:
        """Go without a word, as when the network breaks."""
        self.setup.cut(self.setup.client_id)

    def receive(self) -> Message:
        """The next message that came."""
        try:
            return self.received.get(timeout=DEADLINE_S)
        except Empty:
            raise TimeoutError(f"{self.setup.client_id} got no message within {DEADLINE_S:g} s") from None
