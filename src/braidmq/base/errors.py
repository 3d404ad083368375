"""The whole exception tree.

    BraidError
    ├── ProtocolViolation      the peer's fault; carries the MQTT reason code to answer with
    │   └── UnsupportedProtocol    a CONNECT of a protocol name or level that we do not speak
    ├── UsageError             the caller's fault: wrong arguments, wrong order of calls
    │   └── ConfigError            a configuration key with a wrong value, and the remedy
    ├── Unavailable            the world's fault; may pass after a while
    └── Corruption             the disk's or our own fault: stop that part, keep the evidence

Fields come first, the sentence is made from them in ``__str__``.
"""

from __future__ import annotations


class BraidError(Exception):
    """Root of every exception that braidmq raises on purpose."""


class ProtocolViolation(BraidError):
    """The peer broke the protocol; ``reason`` is the MQTT 5 reason code that says how."""

    def __init__(self, reason: int, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.detail} (reason 0x{self.reason:02X})"


class UnsupportedProtocol(ProtocolViolation):
    """A CONNECT whose protocol name or level we do not speak; ``level`` is what the client asked for."""

    def __init__(self, detail: str, level: int) -> None:
        super().__init__(0x84, detail)
        self.level = level


class UsageError(BraidError):
    """The caller's request is invalid; ``hint`` says what to do instead."""

    def __init__(self, detail: str, hint: str = "") -> None:
        super().__init__(detail, hint)
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.detail}: {self.hint}" if self.hint else self.detail


class ConfigError(UsageError):
    """The configuration key ``key`` cannot be used as it is."""

    def __init__(self, key: str, detail: str, hint: str = "") -> None:
        super().__init__(detail, hint)
        self.args = (key, detail, hint)
        self.key = key

    def __str__(self) -> str:
        sentence = f"{self.key}: {self.detail}" if self.key else self.detail
        return f"{sentence}; {self.hint}" if self.hint else sentence


class Unavailable(BraidError):
    """Something outside is not there now; worth another try after ``retry_after_s``."""

    def __init__(self, detail: str, retry_after_s: float = 1.0) -> None:
        super().__init__(detail, retry_after_s)
        self.detail = detail
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.detail} (try again in {self.retry_after_s:g} s)"


class Corruption(BraidError):
    """Stored data does not read back as it was written."""
