"""Authorisation from an ACL file in Mosquitto's syntax.

    topic read news/#                    before the first user line: applies to clients without a user name
    user alice
    topic [read|write|readwrite|deny] home/#
    pattern [read|write|readwrite|deny] devices/%c/%u/#      applies to every client, wherever it stands

A deny rule overrides all others. One invalid line makes the whole file invalid, and then every access is denied.

``%c`` and ``%u`` are replaced by plain text of one level, which can never widen a rule: a name that is empty, contains ``+``,
``#`` or ``/``, or begins with ``$`` disables the granting rules that use it, and a denying rule then covers everything below
the level of the name.
"""

from __future__ import annotations

import asyncio
import re
from typing import Literal, cast

import msgspec

from braidmq.access.contract import Rules
from braidmq.access.filter_tree import FilterTree
from braidmq.access.watched_file import WatchedFile
from braidmq.base.errors import ConfigError, ProtocolViolation
from braidmq.mqtt.topics import check_filter, covers, matches, overlaps

KEY = "access.acl_file"

Access = Literal["read", "write", "readwrite", "deny"]
_ACCESS: tuple[Access, ...] = ("read", "write", "readwrite", "deny")

_NAME_SIGN = re.compile("%[cu]")
# The broker strips these prefixes before it checks the rules, so a rule with one of them could never match.
_OUTER_PREFIXES = ("$share/", "$exclusive/", "$delayed/", "$queue/")


class Pattern(msgspec.Struct, frozen=True):
    """A rule with ``%c`` or ``%u`` in its filter."""

    access: Access
    topic_filter: str


class _Grants:
    """The rules of one user without ``%c`` and ``%u``; shared by all clients of that user."""

    __slots__ = ("read", "write", "deny")

    def __init__(self) -> None:
        self.read = FilterTree()
        self.write = FilterTree()
        self.deny = FilterTree()

    def add(self, access: Access, topic_filter: str) -> None:
        if access == "deny":
            self.deny.add(topic_filter)
        if access in ("read", "readwrite"):
            self.read.add(topic_filter)
        if access in ("write", "readwrite"):
            self.write.add(topic_filter)


class AclTable:
    """A parsed ACL file."""

    def __init__(self, rules: dict[str | None, list[tuple[Access, str]]], patterns: list[Pattern]) -> None:
        fixed = [(each.access, each.topic_filter) for each in patterns if not _NAME_SIGN.search(each.topic_filter)]
        self._grants: dict[str | None, _Grants] = {name: _compile([*own, *fixed]) for name, own in rules.items()}
        self._grants_of_others = _compile(fixed)
        self._patterns = tuple(each for each in patterns if _NAME_SIGN.search(each.topic_filter))

    def rules_for(self, client_id: str, user_name: str | None, *, grants_unmatched: bool) -> ClientRules:
        """The rules of one client; ``grants_unmatched`` allows what no rule matches."""
        grants = self._grants.get(user_name, self._grants_of_others)
        return ClientRules(grants, self._patterns, client_id, user_name, grants_unmatched)


def parse(text: str) -> AclTable:
    """Parse an ACL file; raises ConfigError with the line number if a line is invalid."""
    rules: dict[str | None, list[tuple[Access, str]]] = {None: []}
    patterns: list[Pattern] = []
    user_name: str | None = None
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        keyword, _, rest = line.partition(" ")
        try:
            match keyword:
                case "user":
                    user_name = _parse_user(rest.strip())
                    rules.setdefault(user_name, [])
                case "topic":
                    rules[user_name].append(_parse_rule(rest.strip(), is_pattern=False))
                case "pattern":
                    patterns.append(Pattern(*_parse_rule(rest.strip(), is_pattern=True)))
                case _:
                    raise ValueError(f"a line must begin with user, topic or pattern, not {keyword[:40]!r}")
        except (ValueError, ProtocolViolation) as error:
            detail = error.detail if isinstance(error, ProtocolViolation) else str(error)
            raise ConfigError(KEY, f"line {number}: {detail}", "everything is denied until it is fixed") from None
    return AclTable(rules, patterns)


class ClientRules:
    """The rules of one client. Small: there is one for each connection."""

    __slots__ = ("_grants", "_patterns", "_client_id", "_user_name", "_grants_unmatched")

    unrestricted = False

    def __init__(
        self, grants: _Grants, patterns: tuple[Pattern, ...], client_id: str, user_name: str | None, grants_unmatched: bool
    ) -> None:
        self._grants = grants
        self._patterns = patterns
        self._client_id = client_id
        self._user_name = user_name
        self._grants_unmatched = grants_unmatched

    def may_publish(self, topic: str) -> bool:
        """Whether a rule lets the client write to this topic and no rule denies it."""
        if self._grants.deny.matches(topic) or any(matches(denied, topic) for denied in self._named(("deny",))):
            return False
        return (
            self._grants_unmatched
            or self._grants.write.matches(topic)
            or any(matches(granted, topic) for granted in self._named(("write", "readwrite")))
        )

    def may_subscribe(self, topic_filter: str) -> bool:
        """Whether one rule lets the client read everything the filter can match, and no rule denies any part of it."""
        if self._grants.deny.overlaps(topic_filter) or any(overlaps(denied, topic_filter) for denied in self._named(("deny",))):
            return False
        return (
            self._grants_unmatched
            or self._grants.read.covers(topic_filter)
            or any(covers(granted, topic_filter) for granted in self._named(("read", "readwrite")))
        )

    def _named(self, wanted: tuple[Access, ...]) -> list[str]:
        """The filters of the patterns of these kinds, with the client's names inserted."""
        filters = []
        for pattern in self._patterns:
            if pattern.access in wanted:
                topic_filter = _put_names_in(pattern, self._client_id, self._user_name)
                if topic_filter is not None:
                    filters.append(topic_filter)
        return filters


class _DenyAll:
    """The rules of every client while the file is invalid."""

    unrestricted = False

    def may_publish(self, topic: str) -> bool:
        return False

    def may_subscribe(self, topic_filter: str) -> bool:
        return False


class _AllowAll:
    """The rules of every client without an ACL file."""

    unrestricted = True

    def may_publish(self, topic: str) -> bool:
        return True

    def may_subscribe(self, topic_filter: str) -> bool:
        return True


DENY_ALL = _DenyAll()
ALLOW_ALL = _AllowAll()


class FileAuthorizer:
    """Provides the rules of clients from an ACL file; with an empty ``path`` everything is allowed."""

    def __init__(self, path: str, *, grants_unmatched: bool) -> None:
        self.epoch = 0
        self.file = WatchedFile(KEY, path, parse) if path else None
        self._grants_unmatched = grants_unmatched

    async def reconfigure(self, path: str, *, grants_unmatched: bool) -> None:
        """Use another file, or another decision for topics that no rule matches."""
        if path != ("" if self.file is None else self.file.path):
            self.file = await asyncio.to_thread(WatchedFile, KEY, path, parse) if path else None
        self._grants_unmatched = grants_unmatched

    @property
    def has_rules(self) -> bool:
        """False while the file cannot be used."""
        return self.file is None or self.file.value is not None

    def rules_for(self, client_id: str, user_name: str | None) -> Rules:
        """The current rules; cheap, call it again whenever ``epoch`` has risen."""
        if self.file is None:
            return ALLOW_ALL
        if self.file.value is None:
            return DENY_ALL
        return self.file.value.rules_for(client_id, user_name, grants_unmatched=self._grants_unmatched)


def _compile(rules: list[tuple[Access, str]]) -> _Grants:
    grants = _Grants()
    for access, topic_filter in rules:
        grants.add(access, topic_filter)
    return grants


def _parse_user(user_name: str) -> str:
    if not user_name:
        raise ValueError("the user name is missing")
    return user_name


def _parse_rule(text: str, *, is_pattern: bool) -> tuple[Access, str]:
    first, space, rest = text.partition(" ")
    access: Access
    if space:
        if first not in _ACCESS:
            raise ValueError(f"access must be read, write, readwrite or deny, not {first[:40]!r}")
        access, topic_filter = first, rest.strip()
    elif first in _ACCESS:
        # Mosquitto takes the word as a topic of that name; more likely the topic was forgotten.
        raise ValueError(f"the topic after {first!r} is missing")
    else:
        access, topic_filter = "readwrite", first
    if topic_filter.startswith(_OUTER_PREFIXES):
        raise ValueError("rules apply to the topic without $share, $exclusive or $delayed; remove the prefix")
    check_filter(_NAME_SIGN.sub("x", topic_filter) if is_pattern else topic_filter)
    return access, topic_filter


def _put_names_in(pattern: Pattern, client_id: str, user_name: str | None) -> str | None:
    """The pattern's filter for this client; None if the rule does not apply to it."""
    names = {"%c": client_id, "%u": user_name}
    used = {sign: names[sign] for sign in _NAME_SIGN.findall(pattern.topic_filter)}
    if all(_is_plain(name) for name in used.values()):
        # In one pass: the name of a client called "%u" must not be replaced again.
        return _NAME_SIGN.sub(lambda sign: cast(str, used[sign[0]]), pattern.topic_filter)
    if pattern.access != "deny":
        return None
    kept: list[str] = []
    for level in pattern.topic_filter.split("/"):
        if _NAME_SIGN.search(level):
            break
        kept.append(level)
    return "/".join([*kept, "#"])


def _is_plain(name: str | None) -> bool:
    """Whether this name, as a topic level, has no special meaning."""
    return name is not None and name != "" and name[0] != "$" and not any(sign in name for sign in "+#/")
