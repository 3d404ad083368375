"""Converts the lines of a ``mosquitto.conf`` to braidmq's tables and reports the outcome of each line.

No line is dropped silently: each produces at least one row. If a restriction has no counterpart (a mount point, a pre-shared key,
an interface), the listener is written with ``enabled = false``, so that it never admits more clients than before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from braidmq.access import acl, files, passwords
from braidmq.base.config.keys import find_key
from braidmq.base.errors import ConfigError
from braidmq.cli.mosquitto import options
from braidmq.cli.mosquitto.conf import ConfLine, included, resolve
from braidmq.cli.mosquitto.listeners import MosquittoListener, take_listener
from braidmq.cli.mosquitto.report import Report, ReportRow, bad_value, is_true, number

PASSWORD_FILE, ACL_FILE = "passwd", "acl"

_EXPIRY = re.compile(r"(\d{1,6})([hdwmy])", re.ASCII)
_DAYS = {"d": 1, "w": 7, "m": 30, "y": 365}
_LOG_LEVELS = {"debug": "debug", "all": "debug", "error": "error", "warning": "warning", "none": "error"}
_LOG_ORDER = ("debug", "info", "warning", "error")

# Room for a topic and properties in addition to the payload.
_PACKET_OVERHEAD_BYTES = 1024


class Import:
    """The result: tables for ``braidmq.toml``, files to copy, and a row for each line."""

    def __init__(self, lines: list[ConfLine], folder: Path) -> None:
        """Convert all lines; raises UsageError for one that Mosquitto itself would reject. Writes no files."""
        self.files: dict[Path, str] = {}  # to write: text by path
        self._report = Report()
        self._folder = folder.absolute()
        self._lines = lines
        self._default = MosquittoListener(None)
        self._listeners: list[MosquittoListener] = []
        self._access: dict[str, list[ConfLine]] = {name: [] for name in options.ACCESS_OPTIONS}
        self._log_types: list[ConfLine] = []
        self._plugins: list[ConfLine] = []
        self._is_per_listener = any(line.option == "per_listener_settings" and is_true(line) for line in lines)
        self._sort_lines()
        self._take_files()
        self._take_listeners()
        self._take_log_types()
        self._note_defaults()

    @property
    def tables(self) -> dict[str, Any]:
        """The contents of ``braidmq.toml``."""
        return self._report.tables

    @property
    def held(self) -> dict[str, str]:
        """The listeners that are not enabled, with the reasons."""
        return self._report.held

    @property
    def rows(self) -> list[ReportRow]:
        """One or more rows per line, in order; defaults of Mosquitto come last."""
        rows = self._report.rows
        answered = {row.line.index for row in rows if row.line is not None}
        unknown = [ReportRow("none", line, "unknown option") for line in self._lines if line.index not in answered]
        end = len(self._lines)
        return sorted([*rows, *unknown], key=lambda row: end if row.line is None else row.line.index)

    # -- single options ------------------------------------------------------------------------------------------------

    def _sort_lines(self) -> None:
        current = self._default
        for line in self._lines:
            name = line.option
            if name == "listener":
                current = MosquittoListener(line)
                self._listeners.append(current)
            elif name in options.LISTENER_OPTIONS:
                self._report.tell_overruled(current.options.get(name))
                current.options[name] = line
            elif name in options.ACCESS_OPTIONS:
                self._access[name].append(line)
                if self._is_per_listener:
                    current.options[name] = line
            elif name in options.BRIDGE_OPTIONS or name.startswith("bridge_"):
                self._report.tell("none", line, "bridges are not converted; links between clusters are not supported yet")
            elif name in options.PLUGIN_OPTIONS or name.startswith(("auth_opt_", "plugin_opt_")):
                self._plugins.append(line)
                self._report.tell("none", line, "plugins are not converted; their access rules are lost")
            else:
                self._take_option(line)

    def _take_option(self, line: ConfLine) -> None:
        name = line.option
        if name in options.NUMBERS:
            self._take_number(line, options.NUMBERS[name])
        elif name in options.FLAGS:
            self._report.set(line, options.FLAGS[name], is_true(line))
        elif name in options.WITHOUT_COUNTERPART:
            self._report.tell("none", line, options.WITHOUT_COUNTERPART[name])
        elif name == "log_type":
            self._log_types.append(line)
        elif name == "include_dir":
            self._report.tell("taken", line, f"{len(included(line))} files read")
        elif name == "message_size_limit":
            self._take_message_size(line)
        elif name == "persistent_client_expiration":
            self._take_expiry(line)
        elif name == "per_listener_settings":
            if self._is_per_listener:
                self._report.tell("changed", line, "all listeners share one password file and one ACL file; see their lines")
            else:
                self._report.tell("taken", line, "same as the default")

    def _take_number(self, line: ConfLine, target: options.Number) -> None:
        value = number(line)
        if value == 0 and target.zero is not None:
            self._report.set(line, target.key, target.zero, note="for no limit", outcome="changed")
            return
        key = find_key(target.key, "mosquitto.conf")
        fitting = max(value, int(key.least or 0))
        if key.most is not None:
            fitting = min(fitting, int(key.most))
        if fitting != value:
            self._report.set(line, target.key, fitting, note="nearest possible value", outcome="changed")
        else:
            self._report.set(line, target.key, value, note=target.note, outcome="changed" if target.note else "taken")

    def _take_message_size(self, line: ConfLine) -> None:
        limit = number(line)
        if not limit:
            self._report.tell("taken", line, "no separate limit; mqtt.packet_bytes_max applies")
        elif any(other.option == "max_packet_size" for other in self._lines):
            self._report.tell("changed", line, "max_packet_size, which applies to the whole packet, is the only limit")
        else:
            note = f"limits the whole packet: {_PACKET_OVERHEAD_BYTES} bytes more than the payload limit"
            self._report.set(line, ("mqtt", "packet_bytes_max"), limit + _PACKET_OVERHEAD_BYTES, note=note, outcome="changed")

    def _take_expiry(self, line: ConfLine) -> None:
        found = _EXPIRY.fullmatch(line.value)
        if found is None:
            raise bad_value(line, "is not a number followed by h, d, w, m or y")
        count, unit = int(found[1]), found[2]
        text = f"{count}h" if unit == "h" else f"{count * _DAYS[unit]}d"
        for key in ("expiry_mqtt3", "expiry_max"):
            self._report.set(line, ("session", key), text)

    def _take_log_types(self) -> None:
        if not self._log_types:
            return
        levels = {_LOG_LEVELS.get(word, "info") for line in self._log_types for word in line.value.split()}
        level = min(levels, key=_LOG_ORDER.index)
        for line in self._log_types:
            self._report.set(line, ("log", "level"), level, note="a level and everything above it", outcome="changed")

    def _note_defaults(self) -> None:
        given = {line.option for line in self._lines}
        if not given & {"max_packet_size", "message_size_limit"}:
            self._report.tell(
                "changed",
                None,
                "no max_packet_size: Mosquitto has no limit, braidmq limits packets to mqtt.packet_bytes_max = 1088 KiB",
            )
        if "persistent_client_expiration" not in given:
            self._report.tell(
                "changed", None, "no persistent_client_expiration: Mosquitto keeps sessions for ever, braidmq for 7 days"
            )

    # -- passwords and rules -------------------------------------------------------------------------------------------

    def _take_files(self) -> None:
        self._take_file("password_file", PASSWORD_FILE, self._describe_passwords)
        self._take_file("acl_file", ACL_FILE, self._describe_rules)
        for line in self._access["allow_anonymous"]:
            place = "this listener" if self._is_per_listener else "every listener"
            self._report.tell("taken", line, f"allow_anonymous = {str(is_true(line)).lower()} of {place}")
        access = self.tables.get("access", {})
        if self._plugins and "acl_file" not in access:
            self._keep_file(
                "acl_file", ACL_FILE, "# The rules came from a plugin and could not be converted: nothing is allowed.\n"
            )
            self._report.tell("changed", self._plugins[0], "replaced by an empty ACL file, which denies everything")
        elif "acl_file" in access and "password_file" not in access:
            text = "user names are not verified without a password file: only patterns and rules before the first user line apply"
            self._report.tell("changed", self._access["acl_file"][-1], text)

    def _take_file(self, option: str, name: str, describe: Callable[[ConfLine, str], None]) -> None:
        lines = self._access[option]
        if not lines:
            return
        paths = {resolve(line, line.value): line for line in reversed(lines)}
        # If the option applies to all listeners, the last line counts; if each has its own, choose the first.
        chosen = lines[0] if self._is_per_listener else lines[-1]
        source = resolve(chosen, chosen.value)
        try:
            text, _ = files.read_text(str(source))
        except (OSError, UnicodeDecodeError) as error:
            raise bad_value(chosen, f"cannot be read: {error}") from None
        self._keep_file(option, name, text)
        describe(chosen, text)
        for line in lines:
            if line is not chosen:
                same = resolve(line, line.value) == source
                if same:
                    self._report.tell("taken", line, "the same file")
                elif self._is_per_listener:
                    self._report.tell(
                        "none", line, f"all listeners share one {option}: the one of line {chosen.where}, not this one"
                    )
                else:
                    self._report.tell_overruled(line)
        if self._is_per_listener and (len(paths) > 1 or len(lines) < len(self._all_listeners())):
            self._report.tell("changed", chosen, f"this {option} now applies to every listener")

    def _keep_file(self, option: str, name: str, text: str) -> None:
        self.files[self._folder / name] = text
        self.tables.setdefault("access", {})[option] = str(self._folder / name)

    def _describe_passwords(self, line: ConfLine, text: str) -> None:
        try:
            users = passwords.parse(text)
        except ConfigError as problem:
            self._report.tell("changed", line, f"copied to {PASSWORD_FILE}, but all clients are rejected: {problem.detail}")
            return
        self._report.tell(
            "taken", line, f"copied to {PASSWORD_FILE}: {len(users)} users; old hashes are upgraded at the next login"
        )

    def _describe_rules(self, line: ConfLine, text: str) -> None:
        try:
            acl.parse(text)
        except ConfigError as problem:
            self._report.tell("changed", line, f"copied to {ACL_FILE}, but everything is denied: {problem.detail}")
            return
        note = "a subscription wider than the rules is rejected; Mosquitto accepts it and withholds messages"
        self._report.tell("changed", line, f"copied to {ACL_FILE}; {note}")

    # -- listeners -----------------------------------------------------------------------------------------------------

    def _all_listeners(self) -> list[MosquittoListener]:
        is_wanted = not self._listeners or any(name in self._default.options for name in ("port", "bind_address"))
        return [self._default, *self._listeners] if is_wanted else self._listeners

    def _take_listeners(self) -> None:
        listeners = self._all_listeners()
        if self._default not in listeners:
            for name, line in self._default.options.items():
                if name not in options.ACCESS_OPTIONS:
                    self._report.tell(
                        "none", line, "belongs to the default listener, which Mosquitto does not start if there are others"
                    )
        common = None if self._is_per_listener else next(reversed(self._access["allow_anonymous"]), None)
        has_passwords = "password_file" in self.tables.get("access", {})
        for listener in listeners:
            take_listener(listener, self._report, anonymous=common, has_passwords=has_passwords, is_only=not self._listeners)
