"""PEM files of certificates and keys, loaded into an ``ssl.SSLContext``.

``key`` is the table of the configuration that names the files; every file that cannot be used is a ``ConfigError`` with its key.
"""

from __future__ import annotations

import ssl

from braidmq.base.errors import ConfigError


def load_certificate(context: ssl.SSLContext, key: str, cert_file: str, key_file: str) -> None:
    """Load the node's own certificate and its key."""
    _check_readable(f"{key}.cert_file", cert_file)
    _check_readable(f"{key}.key_file", key_file)
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key}.key_file", f"{key_file} is not the key of {cert_file}") from None
        raise ConfigError(f"{key}.cert_file", f"cannot use {cert_file} with {key_file}: {error.reason or 'not PEM'}") from None
    except ConfigError:
        raise ConfigError(f"{key}.key_file", f"{key_file} is encrypted", "store it without a passphrase, mode 0600") from None


def load_authorities(context: ssl.SSLContext, key: str, ca_file: str) -> None:
    """Load the authorities that peers' certificates are verified against; there must be at least one."""
    load_trusted(context, f"{key}.ca_file", ca_file)
    if not context.cert_store_stats()["x509_ca"]:
        raise ConfigError(f"{key}.ca_file", f"{ca_file} holds no CA certificate")


def load_trusted(context: ssl.SSLContext, key: str, file_name: str) -> None:
    """Load certificates or revocation lists that the context verifies peers with; ``key`` is that of the file itself."""
    _check_readable(key, file_name)
    try:
        context.load_verify_locations(file_name)
    except ssl.SSLError as error:
        raise ConfigError(key, f"cannot use {file_name}: {error.reason or 'not PEM'}") from None


def _check_readable(key: str, file_name: str) -> None:
    try:
        with open(file_name, "rb"):
            pass
    except OSError as error:
        raise ConfigError(key, f"cannot read {file_name}: {error.strerror}") from None


def _no_password() -> str:
    # Without a callback OpenSSL would ask on the terminal and block the broker.
    raise ConfigError("", "encrypted key")
