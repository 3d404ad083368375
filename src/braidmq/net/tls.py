"""TLS between nodes: both sides show a certificate, and both verify the other's against one CA file."""

from __future__ import annotations

import ssl

from braidmq.base.tls_files import load_authorities, load_certificate


def accepting_context(key: str, cert_file: str, key_file: str, ca_file: str) -> ssl.SSLContext:
    """The context of a node that others connect to; raises ConfigError, with a key below ``key``. Blocks on files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # a resumed session is not verified again
    return _complete(context, key, cert_file, key_file, ca_file)


def connecting_context(key: str, cert_file: str, key_file: str, ca_file: str) -> ssl.SSLContext:
    """The context of a node that connects; the peer's certificate must also name the host that it connects to."""
    return _complete(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), key, cert_file, key_file, ca_file)


def _complete(context: ssl.SSLContext, key: str, cert_file: str, key_file: str, ca_file: str) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # both sides are ours
    context.verify_mode = ssl.CERT_REQUIRED
    load_certificate(context, key, cert_file, key_file)
    load_authorities(context, key, ca_file)
    return context
