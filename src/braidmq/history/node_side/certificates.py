"""The TLS files of the history service: whether they are valid, and whether they have changed since it started.

Arrow Flight cannot change the certificate of a running server, so new files need a new process. They are validated like those of
the MQTT listeners, with the same log messages. A restart interrupts open streams, so it happens only if the contents have
changed.
"""

from __future__ import annotations

import logging
from pathlib import Path

from braidmq.base.config.settings import HistorySettings, ListenerSettings
from braidmq.base.errors import ConfigError
from braidmq.broker.listeners.tls import TlsContexts
from braidmq.history.messages import Tls

log = logging.getLogger("braidmq.history")

_TABLE = "history"  # the configuration section that names the files


class ServiceCertificates:
    """The certificates in use: `tls`, valid when it was read, or None without TLS. Methods block on file access."""

    def __init__(self, history: HistorySettings) -> None:
        """Raises ConfigError for a file that cannot be used."""
        self._settings = history
        self._checked = _check(history)
        try:
            self.tls = _read(history)
        except OSError as problem:
            raise ConfigError("history.cert_file", f"the certificates cannot be read: {problem}") from None

    @property
    def expires_at(self) -> float | None:
        """When the certificate expires, in seconds since 1970; None without TLS."""
        return self._checked.expires_at if self._checked is not None else None

    def refresh(self) -> bool:
        """Check the files; True if they changed and are valid, so that the service needs them."""
        return self._checked is not None and self._checked.refresh() and self._is_other()

    def reload(self, history: HistorySettings) -> bool:
        """Read the files that these settings name; True if the service needs them. Invalid files are logged."""
        if self._checked is not None and history.cert_file:
            if not self._checked.reload(_as_listener(history)):
                return False
        else:
            try:
                self._checked = _check(history)
            except ConfigError as problem:
                log.error("%s; the history service continues without TLS", problem)
                return False
        self._settings = history
        return self._is_other()

    def _is_other(self) -> bool:
        try:
            before, self.tls = self.tls, _read(self._settings)
        except OSError as problem:
            log.error("history: %s; the certificates loaded before stay in use", problem)
            return False
        return before != self.tls


def _check(history: HistorySettings) -> TlsContexts | None:
    return TlsContexts(_TABLE, _as_listener(history)) if history.cert_file else None


def _as_listener(history: HistorySettings) -> ListenerSettings:
    return ListenerSettings(
        bind=history.bind,
        cert_file=history.cert_file,
        key_file=history.key_file,
        ca_file=history.ca_file,
        verify="required" if history.ca_file else "none",
    )


def _read(history: HistorySettings) -> Tls | None:
    if not history.cert_file:
        return None
    certificate, key = Path(history.cert_file).read_bytes(), Path(history.key_file).read_bytes()
    return Tls(certificate, key, Path(history.ca_file).read_bytes() if history.ca_file else b"")
