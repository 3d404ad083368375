"""Messages that are kept, and the two clocks they are kept by."""

from __future__ import annotations

from hypothesis import strategies as st

from braidmq.lane.path.message import Message
from braidmq.storage.rows.changes import Change
from tests.storage.message_log import Stage, unexpected
from tests.storage.session_values import texts

EXPIRY_PROPERTY = bytes.fromhex("0200000001")
EXPIRY_OFFSET = 1

Fields = tuple[bytes, bytes, int, bool, str, bytes, int]


class Clocks:
    """A wall clock and a monotonic clock, moved by the test."""

    def __init__(self, wall: float = 1_700_000_000.0, now: float = 500.0) -> None:
        self.at_wall = wall
        self.at_now = now

    def wall(self) -> float:
        return self.at_wall

    def now(self) -> float:
        return self.at_now

    def pass_time(self, seconds: float) -> None:
        self.at_wall += seconds
        self.at_now += seconds

    def reboot(self, seconds: float, now: float) -> None:
        """Let time pass, after which the monotonic clock has begun anew."""
        self.at_wall += seconds
        self.at_now = now


def make_message(
    topic: str = "a/b",
    payload: bytes = b"hi",
    *,
    qos: int = 1,
    retain: bool = True,
    publisher: str = "p",
    expires_at: float = 0.0,
) -> Message:
    """A message; one that expires has the property that says so."""
    message = Message(topic.encode(), payload, qos, retain, publisher)
    if expires_at:
        message.set_properties(EXPIRY_PROPERTY, expires_at, EXPIRY_OFFSET)
    return message


def fields_of(message: Message) -> Fields:
    """Everything but when it expires, which two clocks have a hand in."""
    return (
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.publisher,
        message.properties,
        message.expiry_offset,
    )


def put(stage: Stage, *changes: Change) -> None:
    """Write changes and wait for the commit."""
    stage.log.change(changes, on_commit=lambda: None, on_refused=unexpected)
    stage.settle()


user_names = st.none() | texts


@st.composite
def messages(draw: st.DrawFn, topics: st.SearchStrategy[str] = texts) -> Message:
    """Messages without expiry, some with properties."""
    message = Message(
        draw(topics).encode(), draw(st.binary(max_size=40)), draw(st.integers(0, 2)), draw(st.booleans()), draw(texts)
    )
    properties = draw(st.binary(max_size=20))
    if properties:
        message.set_properties(properties, 0.0, -1)
    return message
