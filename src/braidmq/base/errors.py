"""The whole exception tree.

    BraidError
    ├── ProtocolViolation      the peer's fault; carries the MQTT reason code to answer with
    │   └── UnsupportedProtocol    a CONNECT with an unsupported protocol name or level
    ├── UsageError             the caller's fault: wrong arguments, wrong order of calls
    │   └── ConfigError            a configuration key with an invalid value, and the remedy
    ├── Unavailable            the environment's fault; may pass after a while
    └── Corruption             the disk's fault or a bug: stop that part, keep the evidence

Errors have fields; ``__str__`` builds the sentence from them.
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
    """A CONNECT with an unsupported protocol name or level; ``level`` is the one in the packet."""

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
    """The configuration key ``key`` has an invalid value."""

    def __init__(self, key: str, detail: str, hint: str = "") -> None:
        super().__init__(detail, hint)
        self.args = (key, detail, hint)
        self.key = key

    def __str__(self) -> str:
        sentence = f"{self.key}: {self.detail}" if self.key else self.detail
        return f"{sentence}; {self.hint}" if self.hint else sentence


class Unavailable(BraidError):
    """Something outside the process is unavailable now; retry after ``retry_after_s``."""

    def __init__(self, detail: str, retry_after_s: float = 1.0) -> None:
        super().__init__(detail, retry_after_s)
        self.detail = detail
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.detail} (try again in {self.retry_after_s:g} s)"


class Corruption(BraidError):
    """Stored data does not read back as it was written."""
