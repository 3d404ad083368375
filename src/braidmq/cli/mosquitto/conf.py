"""Reads a ``mosquitto.conf`` and its includes as a list of lines, without interpreting them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from braidmq.base.errors import UsageError

# Stops includes that form a cycle.
_DEPTH_MAX = 8

_SECRET_OPTIONS = ("password", "remote_password", "local_password", "bridge_psk", "tls_engine_kpass_sha1")
_SECRET_PREFIXES = ("auth_opt_", "plugin_opt_")


class ConfLine(msgspec.Struct, frozen=True):
    """One option in a file."""

    index: int  # position among the lines of all files
    file: Path
    number: int
    option: str
    value: str

    @property
    def where(self) -> str:
        """The file's name and the line number."""
        return f"{self.file.name}:{self.number}"

    @property
    def shown(self) -> str:
        """The line for a report; secrets are hidden."""
        is_secret = self.option in _SECRET_OPTIONS or self.option.startswith(_SECRET_PREFIXES)
        return f"{self.option} ***" if is_secret else f"{self.option} {self.value}".strip()


def read(path: Path) -> list[ConfLine]:
    """All lines in the order in which Mosquitto reads them; UsageError for a file that cannot be read."""
    lines: list[ConfLine] = []
    _read_into(lines, path, depth=0)
    return lines


def resolve(line: ConfLine, name: str) -> Path:
    """The file that an option names: the path itself, or relative to the file that names it."""
    path = Path(name)
    beside = line.file.parent / path
    return (beside if not path.exists() and beside.exists() else path).absolute()


def _read_into(lines: list[ConfLine], path: Path, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise UsageError(f"{path}: files include each other in a cycle")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8") from None
    for number, raw in enumerate(text.split("\n"), start=1):
        content = raw.strip()
        if not content or content.startswith("#"):
            continue
        option, _, value = content.partition(" ")
        line = ConfLine(len(lines), path, number, option, value.strip())
        lines.append(line)
        if option == "include_dir":
            for file in included(line):
                _read_into(lines, file, depth + 1)


def included(line: ConfLine) -> list[Path]:
    """The files that an ``include_dir`` line includes, in Mosquitto's order: digits, then A, a, B, b."""
    folder = resolve(line, line.value)
    try:
        names = [file for file in folder.iterdir() if file.suffix == ".conf" and file.is_file()]
    except OSError as error:
        raise UsageError(f"{line.where}: {folder} cannot be read: {error.strerror}") from None
    return sorted(names, key=lambda file: [(letter.lower(), letter) for letter in file.name])
