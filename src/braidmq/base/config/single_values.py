"""Checks of single values of a configuration, which the checks across keys share."""

from __future__ import annotations

import os
import re
import ssl
from typing import Final

from braidmq.base.config.addresses import Address, parse_address
from braidmq.base.config.keys import Path, dotted
from braidmq.base.errors import ConfigError
from braidmq.base.units import parse_bytes

# Names appear in $SYS topics and in metrics.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}", re.ASCII)


def check_name(key: str, name: str) -> None:
    """Raise ConfigError unless it is the name of a node, a cluster or a listener."""
    if not _PLAIN_NAME.fullmatch(name):
        raise ConfigError(key, f"{name!r} is not a name", "use at most 64 letters, digits, '_', '.', '@', '-'")


def check_address(key: str, text: str) -> Address:
    """The address that a text is; raises ConfigError."""
    try:
        return parse_address(text)
    except ValueError as problem:
        raise ConfigError(key, f"{text!r}: {problem}") from None


def check_target(key: str, text: str, example: str) -> Address:
    """The address that a text is, to connect to: with a host and a port. Raises ConfigError."""
    address = check_address(key, text)
    if not address.host or not address.port:
        raise ConfigError(key, f"{text!r} does not name a host and a port", f"write {example}")
    return address


def check_size(key: str, text: str) -> None:
    """Raise ConfigError unless it is a size; empty: none."""
    try:
        parse_bytes(text or "0")
    except ValueError:
        raise ConfigError(key, f"{text!r} is not a size", 'write bytes or a unit: "500MiB", "20GiB"') from None


def check_readable(key: str, file: str) -> None:
    """Raise ConfigError unless the file can be read."""
    if not os.path.isfile(file):
        raise ConfigError(key, f"there is no file {file}")
    if not os.access(file, os.R_OK):
        raise ConfigError(key, f"this user cannot read {file}")


def check_pair(path: Path, cert_file: str, key_file: str, key_name: str = "key_file") -> None:
    """Raise ConfigError unless the files, named by keys, are a certificate and its private key."""
    key_path = dotted((*path[:-1], key_name))
    check_readable(dotted(path), cert_file)
    check_readable(key_path, key_file)

    def refuse_password() -> str:
        # Without a callback OpenSSL would ask on the terminal.
        raise ConfigError(key_path, f"{key_file} is encrypted", "use a key file without a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, refuse_password)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(key_path, f"{key_file} is not the key of {cert_file}") from None
        raise ConfigError(dotted(path), f"{cert_file} and {key_file} are not a PEM certificate and its private key") from None
