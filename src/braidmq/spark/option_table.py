"""Options as Spark hands them over: texts, under keys in lower case. What is read from them, and what is wrong, is said in words.

Each may be written with the prefix `braidmq.`, where options of several formats are mixed. An option that is not ours is left
alone unless it looks like a slip of the pen; with our prefix it is always refused.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from braidmq.base.errors import ConfigError
from braidmq.base.units import parse_bytes, parse_seconds

PREFIX: Final = "braidmq."
_SECRETS: Final = ("password", "token", "secret")
# What Spark itself adds: to a read or a query, and for tables of its catalog.
_SPARK: Final = {"path", "paths", "checkpointlocation", "queryname", "provider", "owner", "location", "external", "comment"}
_SPARK_PREFIX: Final = "option."

log = logging.getLogger("braidmq.spark")
T = TypeVar("T")


class OptionTable:
    """The options given, by the names that are known. Getters raise ConfigError that names the option, and never a secret."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str]) -> None:
        """Raises ConfigError for an option that is not known but was meant to be."""
        self._names = {name.lower(): name for name in known}
        self._given: dict[str, str] = {}
        for key, value in options.items():
            bare = key.lower().removeprefix(PREFIX)
            if bare in self._names or bare in _SPARK:
                self._add(bare, key, value)
            elif not bare.startswith(_SPARK_PREFIX):
                self._refuse_unknown(key, bare)

    def text(self, name: str, default: str = "") -> str:
        """The text as it was written, without space around it."""
        return self._given.get(name.lower(), default).strip()

    def secret(self, name: str) -> str:
        """The text as it was written."""
        return self._given.get(name.lower(), "")

    def has(self, name: str) -> bool:
        """Whether it was given, and is not empty."""
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
        """A number of seconds, or a span such as 500ms."""
        return self._read(name, default, lambda text: float(parse_seconds(text)), "write a span of time such as 30s")

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of several words."""

        def parse(text: str) -> str:
            if text not in choices:
                raise ValueError(text)
            return text

        return self._read(name, default, parse, f"write {' or '.join(choices)}")

    def texts(self, name: str) -> list[str] | None:
        """A JSON list of texts, or one text."""
        return self._read(name, None, _parse_texts, 'write one, or a JSON list such as ["a", "b"]')

    def _read(self, name: str, default: T, parse: Callable[[str], T], hint: str) -> T:
        text = self.text(name)
        if not text:
            return default
        try:
            return parse(text)
        except ValueError:
            raise ConfigError(name, f"{redact(name, text)!r} does not fit", hint) from None

    def _add(self, bare: str, key: str, value: str) -> None:
        if self._given.get(bare, value) != value:
            raise ConfigError(self._names.get(bare, bare), "is given twice", f"remove it, or {key}")
        self._given[bare] = value

    def _refuse_unknown(self, key: str, bare: str) -> None:
        near = difflib.get_close_matches(bare, self._names, n=1, cutoff=0.8)
        if near:
            raise ConfigError(key, "is no option of braidmq", f"did you mean {self._names[near[0]]}?")
        if key.lower().startswith(PREFIX):
            raise ConfigError(key, "is no option of braidmq", f"there are {', '.join(sorted(self._names.values()))}")
        log.warning("the option %s is none of braidmq's, and is left alone", key)


def redact(name: str, value: str) -> str:
    """The value of an option for a log or an error: not that of a secret."""
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
