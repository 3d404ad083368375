"""Where the configuration comes from: environment > set at run time > file > default.

A ``[listeners]`` table in the file defines the whole set of listeners and replaces the default ones. The environment and the run
time change or add single keys. Run-time values are stored in ``data_dir/overrides.toml``.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path as File
from typing import Any

import msgspec
import tomli_w

from braidmq.base.config import checks as config_checks
from braidmq.base.config.keys import (
    NAME,
    Path,
    all_keys,
    convert_text,
    dotted,
    find_key,
    flatten,
    format_value,
    leaves,
    parse_path,
    parse_toml,
    read_unit,
)
from braidmq.base.config.settings import Settings
from braidmq.base.errors import ConfigError

DEFAULT, FILE, RUN_TIME, ENVIRONMENT = "default", "file", "run time", "environment"
PREFIX = "BRAIDMQ_"
OVERRIDES_FILE = "overrides.toml"
_IN_FILES = "set it in the configuration file of each node, or in its environment"


class Config(msgspec.Struct, frozen=True):
    """The current configuration: values, the origin of each, and notes for the user at start."""

    settings: Settings
    origins: dict[str, str]
    notes: list[str]
    file: str = ""
    sources: dict[str, dict[Path, object]] = {}  # the values of each origin
    keeps_listeners: bool = True  # the set includes the default listeners

    def with_overrides(self, overrides: Mapping[str, object]) -> Config:
        """A copy whose run-time values are replaced by these; raises ConfigError."""
        sources = {origin: found for origin, found in self.sources.items() if origin != ENVIRONMENT}
        sources[RUN_TIME] = _check_overrides(overrides)
        sources[ENVIRONMENT] = self.sources.get(ENVIRONMENT, {})
        return _merge(sources, keeps_listeners=self.keeps_listeners, file=self.file)

    def has_overrides(self, overrides: Mapping[str, object]) -> bool:
        """Whether these are its run-time values. Raises ConfigError if they are not valid."""
        return self.sources.get(RUN_TIME, {}) == _check_overrides(overrides)

    def rows(self) -> list[tuple[str, str, str]]:
        """Every key with its value as TOML and its origin; secrets are hidden."""
        return [
            (dotted(path), '"***"' if key.secret and value else format_value(value), self.origins[dotted(path)])
            for path, key, value in leaves(self.settings)
        ]


class Changes(msgspec.Struct, frozen=True):
    """The keys in which two configurations differ; those in ``restart`` take effect only after a restart."""

    changed: list[str]
    restart: list[str]


def load(
    file: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """Read and check the configuration; raises ConfigError. Without ``overrides``, uses those saved in the data directory."""
    environ = os.environ if environ is None else environ
    tables = _read_toml(File(file)) if file is not None else {}
    where = os.fspath(file) if file is not None else ""
    from_file = flatten(tables, where)
    names = _default_values() | from_file
    from_environment = _read_environment(environ, names)
    if overrides is None:
        data_dir = from_environment.get(("node", "data_dir"), names["node", "data_dir"])
        overrides = read_overrides(str(data_dir))
    at_run_time = _check_overrides(overrides)
    return _merge(
        {FILE: from_file, RUN_TIME: at_run_time, ENVIRONMENT: from_environment},
        keeps_listeners="listeners" not in tables,
        file=where,
    )


def from_tables(tables: Mapping[str, object]) -> Config:
    """The configuration of a file with these tables, ignoring the environment; for tests and embedding."""
    return _merge({FILE: flatten(tables, "given tables")}, keeps_listeners="listeners" not in tables)


def from_settings(settings: Settings) -> Config:
    """The configuration with these values; for embedding. Raises ConfigError if they contradict each other."""
    defaults = _default_values()
    given = {path: value for path, _, value in leaves(settings) if path[0] == "listeners" or defaults.get(path) != value}
    return _merge({FILE: given}, keeps_listeners=False)


def parse_override(name: str, text: str) -> tuple[str, object]:
    """One ``key value`` of a command line as an entry for ``overrides``; raises ConfigError if it cannot be set at run time."""
    path = parse_path(name)
    value = convert_text(find_key(path, "run time"), path, text, "run time")
    _check_overrides({dotted(path): value})
    return dotted(path), value


def shared_override(name: str, value: object) -> object:
    """A value as the cluster keeps it, for all nodes. Raises ConfigError for a key whose value belongs to one node."""
    key = find_key(parse_path(name), "run time")
    if key.secret:
        raise ConfigError(name, "is a secret, and is not kept in the cluster's tables", _IN_FILES)
    if key.per_node:
        raise ConfigError(name, "belongs to one node, and what is set at run time holds for the whole cluster", _IN_FILES)
    return _plain(value)


def is_shared(name: str) -> bool:
    """Whether a value set at run time holds for a whole cluster."""
    key = find_key(parse_path(name), "run time")
    return not key.per_node and not key.secret


def read_overrides(data_dir: str | os.PathLike[str]) -> dict[str, object]:
    """The values set at run time by dotted key; empty if none were saved. Raises ConfigError if the file is invalid."""
    file = File(data_dir) / OVERRIDES_FILE
    if not file.exists():
        return {}
    return {dotted(path): value for path, value in flatten(_read_toml(file), str(file)).items()}


def write_overrides(data_dir: str | os.PathLike[str], overrides: Mapping[str, object]) -> None:
    """Replace the saved values atomically: a crash leaves either the old file or the new one. May block on the disk."""
    tree = _nest({parse_path(name): _plain(value) for name, value in overrides.items()})
    folder = File(data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=OVERRIDES_FILE, dir=folder)  # mode 0600: values may be secrets
    try:
        with os.fdopen(handle, "wb") as out:
            tomli_w.dump(tree, out)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, folder / OVERRIDES_FILE)
    except BaseException:
        File(temporary).unlink(missing_ok=True)
        raise
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def to_toml(values: Mapping[str, object]) -> str:
    """The text of a configuration file with these values, by dotted key."""
    return tomli_w.dumps(_nest({parse_path(name): _plain(value) for name, value in values.items()}))


def describe_changes(old: Settings, new: Settings) -> Changes:
    """What a reload from ``old`` to ``new`` changes, by dotted key; a key that only one of them has counts as changed."""
    before = {path: (key, value) for path, key, value in leaves(old)}
    after = {path: (key, value) for path, key, value in leaves(new)}
    changed = [path for path in before | after if before.get(path) != after.get(path)]
    restart = [path for path in changed if (before.get(path) or after[path])[0].restart]
    return Changes([dotted(path) for path in changed], [dotted(path) for path in restart])


# -- sources -----------------------------------------------------------------------------------------------------------


def _read_toml(file: File) -> dict[str, Any]:
    try:
        return parse_toml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("", f"there is no file {file}") from None
    except OSError as problem:
        raise ConfigError("", f"{file} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("", f"{file} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as problem:
        raise ConfigError("", f"{file} is not TOML: {problem}") from None


def _read_environment(environ: Mapping[str, str], names: Mapping[Path, object]) -> dict[Path, object]:
    misspelt = {key.name.replace(".", "_"): key for key in all_keys() if NAME not in key.path}
    found: dict[Path, object] = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX):
            continue
        word = variable.removeprefix(PREFIX).lower()
        if "__" not in word:
            # braidmq's other variables have one word each, so one that would be a key with "_" for the dot is a mistake.
            if word in misspelt:
                meant = PREFIX + "__".join(misspelt[word].path).upper()
                raise ConfigError(variable, "not a key (environment)", f"did you mean {meant}?")
            continue
        path = _as_named(tuple(word.split("__")), names)
        found[path] = convert_text(find_key(path, f"environment, {variable}"), path, text, f"environment, {variable}")
    return found


def _as_named(path: Path, names: Mapping[Path, object]) -> Path:
    """The path with chosen names as the file spells them: environment variables have no lower case and no hyphens."""

    def plain(part: str) -> str:
        return part.lower().replace("-", "_")

    result: Path = ()
    for part in path:
        spelt = {known[len(result)] for known in names if known[: len(result)] == result and len(known) > len(result)}
        result = (*result, part if part in spelt else next((each for each in sorted(spelt) if plain(each) == part), part))
    return result


def _check_overrides(overrides: Mapping[str, object]) -> dict[Path, object]:
    tree = _nest({parse_path(name): value for name, value in overrides.items()})
    if "node" in tree:
        name = next(name for name in overrides if parse_path(name)[0] == "node")
        raise ConfigError(name, "cannot be set at run time", "set it in the configuration file or in the environment")
    return flatten(tree, "run time")


# -- merging -----------------------------------------------------------------------------------------------------------


def _default_values() -> dict[Path, object]:
    return {path: value for path, _, value in leaves(Settings())}


def _merge(sources: Mapping[str, dict[Path, object]], *, keeps_listeners: bool, file: str = "") -> Config:
    """``sources`` by origin, the one with the highest priority last."""
    values = {path: value for path, value in _default_values().items() if keeps_listeners or path[0] != "listeners"}
    given: dict[Path, str] = {}
    for origin, found in sources.items():
        values |= found
        given |= dict.fromkeys(found, origin)
    _check_complete(values)
    settings = msgspec.convert(_nest(values), Settings, dec_hook=read_unit)
    if not keeps_listeners and not any(path[0] == "listeners" for path in values):
        settings = msgspec.structs.replace(settings, listeners=type(settings.listeners)())
    notes = config_checks.check(settings, given)
    origins = {dotted(path): given.get(path, DEFAULT) for path, _, _ in leaves(settings)}
    return Config(settings, origins, notes, file, dict(sources), keeps_listeners)


def _check_complete(values: Mapping[Path, object]) -> None:
    """Check that each table under a chosen name has its required keys."""
    required = [key for key in all_keys() if key.required]
    for path in values:
        for key in required:
            depth = len(key.path) - 1
            fits = len(path) > depth and all(want in (NAME, part) for want, part in zip(key.path[:-1], path, strict=False))
            if fits and (missing := (*path[:depth], key.path[-1])) not in values:
                raise ConfigError(dotted(missing), f"is missing; [{dotted(missing[:-1])}] needs it")


def _nest(values: Mapping[Path, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        table = tree
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(dotted(path), "a key below another key that has a value")
        table[path[-1]] = value
    return tree


def _plain(value: object) -> object:
    """A value as TOML can hold it; durations and sizes become plain numbers."""
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else value
