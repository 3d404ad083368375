"""The current settings, for parts that must see a change at run time."""

from __future__ import annotations

from braidmq.base.config.settings import Settings


class LiveSettings:
    """Holds the settings in force. Readers keep this object, never ``now``; only ``Broker.reconfigure`` replaces ``now``.

    A part that derives something from the settings, such as an encoded frame, also has a ``reconfigure`` that the broker calls.
    """

    __slots__ = ("now",)

    def __init__(self, settings: Settings) -> None:
        self.now = settings
