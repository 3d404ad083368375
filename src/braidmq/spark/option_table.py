"""Parses options as Spark passes them: strings under lower-case keys. Errors say what is wrong and what to write.

Options may have the prefix `braidmq.`, where options of several formats are mixed. Options of other sources that would change
what is read are rejected with the name of ours, and so are likely typing errors and unknown options with our prefix. Any other
unknown option is ignored and listed in `unknown`. Options are parsed in every process of a query, so this module logs nothing:
the driver warns of them once.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from braidmq.base.errors import ConfigError
from braidmq.base.units import parse_bytes, parse_seconds
from braidmq.spark.source.foreign_options import remedy_for

PREFIX: Final = "braidmq."
_SECRETS: Final = ("password", "token", "secret")
# Options that Spark adds to a read or a query, and for tables of its catalog.
_SPARK: Final = {"path", "paths", "checkpointlocation", "queryname", "provider", "owner", "location", "external", "comment"}
_SPARK_PREFIX: Final = "option."

# Connection options, for reading and writing.
CONNECTION_OPTIONS: Final = (
    "user",
    "password",
    "tls",
    "tls.caFile",
    "tls.certFile",
    "tls.keyFile",
    "tls.serverName",
    "timeout",
    "retryTimeout",
)
_CALL_S: Final = 30.0
_RETRY_S: Final = 60.0

log = logging.getLogger("braidmq.spark")
T = TypeVar("T")


class Security(Struct, frozen=True, kw_only=True):
    """Credentials and TLS files, which are in PEM format."""

    user: str
    password: str
    tls: bool
    ca_file: str
    cert_file: str
    key_file: str
    server_name: str

    @property
    def wants_tls(self) -> bool:
        """Whether an address without a scheme uses TLS."""
        return self.tls or bool(self.ca_file or self.cert_file or self.server_name)

    # A traceback must not show the password.

    def __repr__(self) -> str:
        return f"Security(user={self.user!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("user", self.user)]


class OptionTable:
    """The given options by known name. Getters raise ConfigError with the name of the option, and never show a secret."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str], foreign: Mapping[str, str]) -> None:
        """Raises ConfigError for a misspelt or unknown braidmq option, and for `foreign` ones."""
        self._names = {name.lower(): name for name in known}
        self._foreign = foreign
        self.unknown: tuple[str, ...] = ()
        self._given: dict[str, str] = {}
        for key, value in options.items():
            bare = key.lower().removeprefix(PREFIX)
            if bare in self._names or bare in _SPARK:
                self._add(bare, key, value)
            elif not bare.startswith(_SPARK_PREFIX):
                self._refuse_meant(key, bare)
                self.unknown += (key,)

    def text(self, name: str, default: str = "") -> str:
        """The text without surrounding space."""
        return self._given.get(name.lower(), default).strip()

    def secret(self, name: str) -> str:
        """The text, unchanged."""
        return self._given.get(name.lower(), "")

    def has(self, name: str) -> bool:
        """Whether the option is given and not empty."""
        return bool(self.text(name))

    def flag(self, name: str, default: bool) -> bool:
        """`true` or `false`."""
        return self._read(name, default, _parse_flag, "write true or false")

    def count(self, name: str) -> int | None:
        """A number of at least 1."""
        return self._read(name, None, _parse_count, "write a number of at least 1")

    def size(self, name: str) -> int | None:
        """A number of bytes of at least 1, or a size such as 64MiB."""
        return self._read(name, None, _parse_size, "write a number of bytes, or a size such as 64MiB")

    def seconds(self, name: str, default: float) -> float:
        """A number of seconds, or a duration such as 500ms."""
        return self._read(name, default, lambda text: float(parse_seconds(text)), "write a duration such as 30s")

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of several words."""

        def parse(text: str) -> str:
            if text not in choices:
                raise ValueError(text)
            return text

        return self._read(name, default, parse, f"write {' or '.join(choices)}")

    def texts(self, name: str) -> list[str] | None:
        """A JSON list of strings, or one string."""
        return self._read(name, None, _parse_texts, 'write one, or a JSON list such as ["a", "b"]')

    def security(self) -> Security:
        """Credentials and TLS."""
        cert_file, key_file = self.text("tls.certFile"), self.text("tls.keyFile")
        if bool(cert_file) != bool(key_file):
            raise ConfigError("tls.certFile", "a client certificate needs its key, and a key its certificate", "give both files")
        return Security(
            user=self.text("user"),
            password=self.secret("password"),
            tls=self.flag("tls", False),
            ca_file=self.text("tls.caFile"),
            cert_file=cert_file,
            key_file=key_file,
            server_name=self.text("tls.serverName"),
        )

    @property
    def call_s(self) -> float:
        """The time limit of one call."""
        return self.seconds("timeout", _CALL_S)

    @property
    def retry_s(self) -> float:
        """How long to wait for a lost server."""
        return self.seconds("retryTimeout", _RETRY_S)

    def _read(self, name: str, default: T, parse: Callable[[str], T], hint: str) -> T:
        text = self.text(name)
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            raise ConfigError(name, f"{redact(name, text)!r} is invalid", hint) from None

    def _add(self, bare: str, key: str, value: str) -> None:
        if self._given.get(bare, value) != value:
            raise ConfigError(self._names.get(bare, bare), "is given twice", f"remove it, or {key}")
        self._given[bare] = value

    def _refuse_meant(self, key: str, bare: str) -> None:
        """Raise ConfigError for an option of another source, a misspelt option, or an unknown one with our prefix."""
        remedy = remedy_for(bare, self._foreign)
        if remedy is not None:
            raise ConfigError(key, "is an option of another data source", f"with braidmq, {remedy}")
        near = difflib.get_close_matches(bare, self._names, n=1, cutoff=0.8)
        if near:
            raise ConfigError(key, "is not an option of braidmq", f"did you mean {self._names[near[0]]}?")
        if key.lower().startswith(PREFIX):
            raise ConfigError(key, "is not an option of braidmq", f"the options are {', '.join(sorted(self._names.values()))}")


def warn_of_unknown(names: Sequence[str]) -> None:
    """Log the options that are ignored, in one line. For the driver, once per read or write."""
    if names:
        log.warning("braidmq ignores unknown options: %s", ", ".join(sorted(names)))


def redact(name: str, value: str) -> str:
    """The value of an option for logs and errors; secrets are masked."""
    return "***" if any(word in name.lower() for word in _SECRETS) else value


def _parse_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(text)
    return int(text)


def _parse_size(text: str) -> int:
    size = int(parse_bytes(text))
    if not size:
        raise ValueError(text)
    return size


def _parse_texts(text: str) -> list[str]:
    if not text.startswith("["):
        return [text]
    found = json.loads(text)
    if not found or not all(isinstance(each, str) for each in found):
        raise ValueError(text)
    return list(found)
