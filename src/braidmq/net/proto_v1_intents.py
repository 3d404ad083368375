"""Version 1 of what cores tell each other about retained messages that are on their way to the homes of their topics.

`CoreCalls` carries it. As in `proto_v1`, nothing here changes once a release has it.
"""

from __future__ import annotations

import msgspec


class _IntentMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an operation is asked, or answers."""


class SentIntent(_IntentMessage, frozen=True):
    """A retained message, as its row. ``source``, ``target``: the shards of publisher and topic.

    An empty value stands for the pieces that were sent before.
    """

    source: int
    target: int
    number: int
    value: bytes


class TakeIntents(_IntentMessage, frozen=True):
    """Asks the home of their topics to take these, in this order. ``is_late``: they do not replace what has a higher number."""

    core: str
    is_late: bool
    intents: list[SentIntent]


class IntentsTaken(_IntentMessage, frozen=True):
    """How many need not be sent again: the topic has them on disk, or something newer, or there is no room for them."""

    count: int


class IntentPiece(_IntentMessage, frozen=True):
    """A piece of a value that does not fit into a frame, in order; the intent itself follows."""

    core: str
    number: int
    is_first: bool
    piece: bytes


class AskFloor(_IntentMessage, frozen=True):
    """Asks a core below which number it has no intent for this core any more, and will have none."""

    core: str


class IntentFloor(_IntentMessage, frozen=True):
    """All intents to come have higher numbers."""

    number: int
