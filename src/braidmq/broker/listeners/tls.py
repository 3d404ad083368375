"""TLS of one listener: its ``ssl.SSLContext``, and a new one whenever its files change.

How a reload works. OpenSSL can add to a context but not take away: a CA removed from ``ca_file`` or a certificate replaced by
``load_cert_chain`` would stay in force or leave tickets behind that skip verification. So a context is never changed. A
reload builds a new one, and ``current`` is what the next handshake uses. Connections that are already open keep
theirs, and since session tickets are sealed with the context's own key, a client that was revoked cannot resume past a new CRL.

Why handshakes are not left to ``loop.create_server(ssl=...)``. It would bind the server to one context for its life; a context
that swaps itself in an SNI callback keeps the old verification flags and the old ticket keys, and a failed handshake is
not reported there. ``server.py`` therefore accepts the socket and gives it to ``loop.connect_accepted_socket`` with
``current``: any failure is an exception in our own task. The price is one task for each handshake, lost in the cost of the
handshake's cryptography (docs/tls.md has the figures).

A first load that fails raises ``ConfigError``: a listener never starts half secured. A later one that fails is logged and the
old context stays, since the files may be in the middle of being replaced; the next change is tried again.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
from typing import Literal

from cryptography.x509 import load_pem_x509_certificates, load_pem_x509_crl

from braidmq.base.config.settings import ListenerSettings
from braidmq.base.errors import ConfigError
from braidmq.base.tls_files import load_authorities, load_certificate, load_trusted

logger = logging.getLogger("braidmq.listeners")

_TLS_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

HandshakeFailure = Literal["timeout", "closed", "not_tls", "version", "cipher", "certificate", "server_name", "alert", "other"]

_FAILURES: dict[str, HandshakeFailure] = {
    "WRONG_VERSION_NUMBER": "not_tls",
    "HTTP_REQUEST": "not_tls",
    "HTTPS_PROXY_REQUEST": "not_tls",
    "BAD_RECORD_TYPE": "not_tls",
    "UNSUPPORTED_PROTOCOL": "version",
    "VERSION_TOO_LOW": "version",
    "NO_SHARED_CIPHER": "cipher",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "cipher",
    "CERTIFICATE_VERIFY_FAILED": "certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "certificate",
    "CALLBACK_FAILED": "server_name",
    "BAD_EXTENSION": "server_name",
}

_CRL = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)

FileState = tuple[tuple[int, int, int] | None, ...]


class TlsContexts:
    """The context that the next handshake of a listener uses; ``key`` is the listener's table, for error messages."""

    def __init__(self, key: str, settings: ListenerSettings) -> None:
        self._key = key
        self._settings = settings
        self._files = _file_names(settings)
        self._loaded = self._file_state()
        self._loading = threading.Lock()  # the watcher and a reload may meet; the older settings must not win
        self.current = build_context(key, settings)
        self.expires_at = _first_expiry(settings)  # of the server certificates, in seconds since 1970

    def refresh(self) -> bool:
        """Reload if a file changed since the last try; True if ``current`` is new. Blocks on files: call it in a thread."""
        with self._loading:
            state = self._file_state()
            return state != self._loaded and self._load(state)

    def reload(self, settings: ListenerSettings) -> bool:
        """Reload, changed or not, with these settings; True if ``current`` is new. Blocks on files: call it in a thread."""
        with self._loading:
            before = self._settings, self._files
            self._settings, self._files = settings, _file_names(settings)
            is_loaded = self._load(self._file_state())
            if not is_loaded:
                self._settings, self._files = before
            return is_loaded

    def _load(self, state: FileState) -> bool:
        # The state was taken before the files are read: what changes meanwhile is seen as a change next time.
        self._loaded = state
        try:
            self.current = build_context(self._key, self._settings)
            self.expires_at = _first_expiry(self._settings)
        except ConfigError as error:
            logger.error("%s; the certificates loaded before stay in use", error)
            return False
        logger.info("%s: certificates reloaded", self._key)
        return True

    def _file_state(self) -> FileState:
        return tuple(_stamp(name) for name in self._files)


def build_context(key: str, settings: ListenerSettings) -> ssl.SSLContext:
    """Load every file and make the context of a listener; raises ``ConfigError`` for a file that cannot be used."""
    context = _server_context(key, settings, settings.cert_file, settings.key_file)
    if settings.sni:
        named = {
            name.lower(): _server_context(f"{key}.sni.{name}", settings, certificate.cert_file, certificate.key_file)
            for name, certificate in settings.sni.items()
        }
        context.sni_callback = _ServerNames(named)
    return context


def handshake_failure(error: BaseException) -> HandshakeFailure:
    """The kind of a failed handshake, for counters."""
    match error:
        case ssl.SSLError():
            reason = error.reason or ""
            return _FAILURES.get(reason, "alert" if "ALERT" in reason else "other")
        case ConnectionAbortedError() | TimeoutError():
            return "timeout"
        case OSError():
            return "closed"
        case _:
            return "other"


class _ServerNames:
    """Chooses the certificate by the name that the client asks for; a name that is not in the table ends the handshake."""

    def __init__(self, contexts: dict[str, ssl.SSLContext]) -> None:
        self._contexts = contexts

    def __call__(self, tls: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> ssl.AlertDescription | None:
        if name is None:
            return None
        name = name.lower()
        chosen = self._contexts.get(name) or self._contexts.get(f"*.{name.partition('.')[2]}")
        if chosen is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        tls.context = chosen
        return None


def _server_context(key: str, settings: ListenerSettings, cert_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _TLS_VERSIONS[settings.tls_min]
    # A renegotiation costs the server far more than the client, and no MQTT client needs one.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    load_certificate(context, key, cert_file, key_file)
    context.verify_mode = _VERIFY_MODES[settings.verify]
    if settings.verify != "none":
        # A resumed session is not verified again, so clients that must show a certificate show it each time.
        context.num_tickets = 0
        _load_authorities(context, key, settings)
    return context


def _load_authorities(context: ssl.SSLContext, key: str, settings: ListenerSettings) -> None:
    load_authorities(context, key, settings.ca_file)
    before = context.cert_store_stats()
    if settings.crl_file:
        load_trusted(context, f"{key}.crl_file", settings.crl_file)
        after = context.cert_store_stats()
        # OpenSSL reads both from any file: a certificate among the CRLs would silently become one more trusted CA.
        if after["crl"] == before["crl"] or after["x509"] != before["x509"]:
            raise ConfigError(f"{key}.crl_file", f"{settings.crl_file} must hold revocation lists and nothing else")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        try:
            unlisted = _without_list(settings.ca_file, settings.crl_file)
        except ValueError as error:
            raise ConfigError(f"{key}.crl_file", f"cannot use {settings.crl_file} with {settings.ca_file}: {error}") from None
        if unlisted:
            # With this flag OpenSSL wants a list of every authority in the chain, or refuses the client.
            logger.warning("%s.crl_file: no revocation list of %s, so revoked authorities are not detected", key, unlisted)
        else:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _without_list(ca_file: str, crl_file: str) -> str:
    """The name of an authority in ``ca_file`` whose revocation list is not in ``crl_file``; empty if there is none."""
    with open(ca_file, "rb") as file:
        authorities = load_pem_x509_certificates(file.read())
    with open(crl_file, "rb") as file:
        lists = [load_pem_x509_crl(part) for part in re.findall(_CRL, file.read())]
    issuers = {each.issuer for each in lists}
    return next((each.subject.rfc4514_string() for each in authorities if each.subject not in issuers), "")


def _file_names(settings: ListenerSettings) -> tuple[str, ...]:
    names = [settings.cert_file, settings.key_file, settings.ca_file, settings.crl_file]
    for certificate in settings.sni.values():
        names += [certificate.cert_file, certificate.key_file]
    return tuple(name for name in names if name)


def _first_expiry(settings: ListenerSettings) -> float | None:
    """When the first of the listener's certificates, which have just been loaded, expires."""
    found: list[float] = []
    for name in (settings.cert_file, *(certificate.cert_file for certificate in settings.sni.values())):
        try:
            with open(name, "rb") as file:
                # The server's own certificate comes first in its chain.
                found.append(load_pem_x509_certificates(file.read())[0].not_valid_after_utc.timestamp())
        except (OSError, ValueError) as error:
            logger.warning("%s: cannot read its expiry: %s", name, error)
    return min(found, default=None)


def _stamp(file_name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file_name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
