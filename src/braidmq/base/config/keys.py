"""The keys of the configuration as data: what each accepts, and how a value is converted to its type.

The tree is derived from ``Settings``. A ``KeyTable`` has known keys, a ``Named`` has tables under names that the user chooses
(``listeners.tcp.NAME``), a ``Key`` is a leaf with a value.
"""

from __future__ import annotations

import difflib
import functools
import json
import tomllib
import typing
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType

import msgspec
import tomli_w

from braidmq.base.config.settings import Settings
from braidmq.base.errors import ConfigError
from braidmq.base.units import Bytes, Seconds, format_bytes, format_seconds, parse_bytes, parse_seconds

Path = tuple[str, ...]
_SHOWN_CHARS_MAX = 200
PER_NODE_TABLES = frozenset({"node", "listeners", "api", "hooks"})  # tables whose keys are all of one node
NAME = "NAME"  # in a path: the placeholder of a name that the user chooses


class Key(msgspec.Struct, frozen=True):
    """One key with a value. ``default`` is None if the key is required, or has no default of its own."""

    path: Path
    type: typing.Any
    meaning: str
    default: object
    required: bool
    least: float | None
    most: float | None
    restart: bool
    secret: bool
    per_node: bool  # not to be set at run time for a whole cluster

    @property
    def name(self) -> str:
        """The key as a user writes it: ``session.queue_wait``."""
        return dotted(self.path)

    @property
    def accepts(self) -> str:
        """What the key accepts, as text."""
        words = _type_in_words(self.type)
        shown = functools.partial(format_value, type_=self.type)
        match self.least, self.most:
            case None, None:
                return words
            case least, None:
                return f"{words} of at least {shown(least)}"
            case None, most:
                return f"{words} of at most {shown(most)}"
            case least, most:
                return f"{words} from {shown(least)} to {shown(most)}"


class KeyTable(msgspec.Struct, frozen=True):
    """A table with a fixed set of keys."""

    path: Path
    meaning: str
    struct: type[msgspec.Struct]
    children: dict[str, Node]


class Named(msgspec.Struct, frozen=True):
    """Tables of one kind under names that the user chooses."""

    path: Path
    element: KeyTable


Node = Key | KeyTable | Named


@functools.cache
def schema() -> KeyTable:
    """The root of all keys."""
    return _table((), Settings)


def all_keys() -> list[Key]:
    """Every key in the order of the documentation; chosen names appear as ``NAME``."""
    return list(_keys_below(schema()))


def dotted(path: Path) -> str:
    """A path as TOML writes it: parts that are not bare keys are quoted."""
    return ".".join(part if _is_bare(part) else json.dumps(part) for part in path)


def parse_toml(text: str) -> dict[str, typing.Any]:
    """Parse TOML; raises ``TOMLDecodeError``, also for values that are nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("the value is nested too deeply") from None


def parse_path(text: str) -> Path:
    """Parse a dotted key, ``listeners.tls.default.sni."a.example".cert_file``; raises ConfigError."""
    try:
        tree: typing.Any = parse_toml(f"{text} = 0")
    except tomllib.TOMLDecodeError:
        tree = None
    parts: list[str] = []
    while isinstance(tree, dict) and len(tree) == 1:
        part, tree = next(iter(tree.items()))
        parts.append(part)
    if tree != 0 or "\n" in text:
        raise ConfigError(text, "not a key", "write keys like session.queue_wait")
    return tuple(parts)


def flatten(tree: Mapping[str, object], where: str) -> dict[Path, object]:
    """The values of a tree of tables by path; rejects unknown keys, naming the nearest known one."""
    found: dict[Path, object] = {}
    _flatten(tree, (), schema(), where, found)
    return found


def find_key(path: Path, where: str) -> Key:
    """The key at a path; raises ConfigError if there is none."""
    node: Node = schema()
    for depth, part in enumerate(path):
        match node:
            case KeyTable(children=children) if part in children:
                node = children[part]
            case Named(element=element):
                node = element
            case _:
                raise _unknown(path[: depth + 1], where)
    if not isinstance(node, Key):
        raise ConfigError(dotted(path), f"a table, not a key with a value ({where})", "name one of its keys")
    return node


def convert(key: Key, path: Path, value: object, where: str) -> object:
    """Convert a value to the key's type; raises ConfigError. ``where`` is its origin, for the error message."""
    typed: object
    try:
        typed, fits = msgspec.convert(value, key.type, dec_hook=read_unit), True
    except (msgspec.ValidationError, ValueError):
        typed, fits = None, False
    least = -float("inf") if key.least is None else key.least
    most = float("inf") if key.most is None else key.most
    # The comparison is written so that NaN fails it.
    if not fits or (isinstance(typed, int | float) and not least <= typed <= most):
        shown = "this value" if key.secret else _shown(value)
        raise ConfigError(dotted(path), f"must be {key.accepts}, not {shown} ({where})", _type_hint(key.type, value))
    return typed


def convert_text(key: Key, path: Path, text: str, where: str) -> object:
    """Like ``convert`` for text from the environment or a command line: TOML if it parses as such, else the text itself."""
    try:
        parsed = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return convert(key, path, text, where)
    try:
        # A line break in the text could add further keys.
        return convert(key, path, parsed["value"], where) if len(parsed) == 1 else convert(key, path, text, where)
    except ConfigError:
        # BRAIDMQ_NODE__NAME=7 parses as a number, but 7 is also a valid name.
        return convert(key, path, text, where)


def read_unit(type_: type, value: object) -> object:
    """The ``dec_hook`` of msgspec for the types of ``units``."""
    if type_ is Seconds:
        return parse_seconds(value)
    if type_ is Bytes:
        return parse_bytes(value)
    raise TypeError(f"no such unit: {type_!r}")


def format_value(value: object, type_: typing.Any = None) -> str:
    """A value as TOML writes it, sizes and durations with their units."""
    if isinstance(value, Seconds) or type_ is Seconds:
        return json.dumps(format_seconds(typing.cast(float, value)))
    if isinstance(value, Bytes) or type_ is Bytes:
        return json.dumps(format_bytes(int(typing.cast(int, value))))
    if isinstance(value, tuple | list):
        return f"[{', '.join(format_value(each) for each in value)}]"
    return "not given" if value is None else tomli_w.dumps({"_": value}).removeprefix("_ = ").rstrip("\n")


def leaves(settings: Settings) -> Iterator[tuple[Path, Key, object]]:
    """Every value of a configuration with its path and key."""
    yield from _leaves((), schema(), settings)


# -- inside ------------------------------------------------------------------------------------------------------------


def _table(path: Path, struct: type[msgspec.Struct]) -> KeyTable:
    children: dict[str, Node] = {}
    for field in msgspec.structs.fields(struct):
        here = (*path, field.name)
        annotation, meta = field.type, msgspec.Meta()
        if typing.get_origin(annotation) is typing.Annotated:
            annotation, meta = typing.get_args(annotation)
        if typing.get_origin(annotation) is dict:
            children[field.name] = Named(here, _table((*here, NAME), typing.get_args(annotation)[1]))
        elif isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
            children[field.name] = _table(here, annotation)
        else:
            assert meta.description, f"{dotted(here)} has no description"
            required = field.default is msgspec.NODEFAULT
            default = None if required else field.default
            extra = meta.extra or {}
            if here[0] in PER_NODE_TABLES:
                extra = {**extra, "per_node": True}
            children[field.name] = Key(here, annotation, meta.description, default, required, **extra)
    return KeyTable(path, (struct.__doc__ or "").strip(), struct, children)


def _keys_below(node: Node) -> Iterator[Key]:
    match node:
        case Key():
            yield node
        case KeyTable(children=children):
            for child in children.values():
                yield from _keys_below(child)
        case Named(element=element):
            yield from _keys_below(element)
        case _:
            typing.assert_never(node)


def _flatten(value: object, path: Path, node: Node, where: str, found: dict[Path, object]) -> None:
    match node:
        case Key():
            found[path] = convert(node, path, value, where)
        case KeyTable() | Named() if not isinstance(value, Mapping):
            raise ConfigError(dotted(path), f"must be a table ({where})", f"write [{dotted(path)}] and its keys below")
        case KeyTable(children=children):
            assert isinstance(value, Mapping)
            for name, below in value.items():
                if name not in children:
                    raise _unknown((*path, name), where)
                _flatten(below, (*path, name), children[name], where, found)
        case Named(element=element):
            assert isinstance(value, Mapping)
            for name, below in value.items():
                if not name:
                    raise ConfigError(dotted((*path, name)), f"an empty name ({where})")
                if below == {}:
                    raise ConfigError(dotted((*path, name)), f"an empty table ({where})", "give it keys or leave it out")
                _flatten(below, (*path, name), element, where, found)
        case _:
            typing.assert_never(node)


def _shown(value: object) -> str:
    """An invalid value in an error message, shortened to one readable line."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except RecursionError:
        return "the value is nested too deeply"
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."


def _unknown(path: Path, where: str) -> ConfigError:
    known = [key.path for key in all_keys()]
    # The suggestion keeps a chosen name as the user wrote it.
    candidates = [dotted(tuple(mine if part == NAME else part for part, mine in zip(each, path, strict=False))
                         + each[len(path):]) for each in known]  # fmt: skip
    candidates += [dotted(each[: len(path)]) for each in known if len(each) > len(path)]
    nearest = difflib.get_close_matches(dotted(path), candidates, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "`braidmq check --sample` lists all keys"
    return ConfigError(dotted(path), f"unknown key ({where})", hint)


def _leaves(path: Path, node: Node, value: typing.Any) -> Iterator[tuple[Path, Key, object]]:
    match node:
        case Key():
            yield path, node, value
        case KeyTable(children=children):
            for name, child in children.items():
                yield from _leaves((*path, name), child, getattr(value, name))
        case Named(element=element):
            for name, below in value.items():
                yield from _leaves((*path, name), element, below)
        case _:
            typing.assert_never(node)


def _is_bare(part: str) -> bool:
    return bool(part) and part.isascii() and part.replace("-", "").replace("_", "").isalnum()


def _type_in_words(annotation: typing.Any) -> str:
    if isinstance(annotation, UnionType):
        return " or ".join(_type_in_words(each) for each in typing.get_args(annotation) if each is not NoneType)
    if typing.get_origin(annotation) is typing.Literal:
        return "one of " + ", ".join(json.dumps(each) for each in typing.get_args(annotation))
    if typing.get_origin(annotation) is tuple:
        return "a list of strings"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Seconds: "a duration", Bytes: "a size"}
    return words[annotation]


def _type_hint(annotation: typing.Any, value: object) -> str:
    if annotation is Seconds:
        return 'write seconds or a unit: 10, "250ms", "10s", "5m", "24h", "7d"'
    if annotation is Bytes:
        return 'write bytes or a unit: 65536, "64KiB", "1MiB", "2GiB"'
    if typing.get_origin(annotation) is tuple and isinstance(value, str) and len(value) <= _SHOWN_CHARS_MAX:
        return f"write [{json.dumps(value, ensure_ascii=False)}]"
    if typing.get_origin(annotation) is typing.Literal and isinstance(value, str):
        choices = [each for each in typing.get_args(annotation) if each]
        nearest = difflib.get_close_matches(value, choices, n=1)
        return f"did you mean {json.dumps(nearest[0])}?" if nearest else ""
    if annotation is bool and value in ("true", "false"):
        return "write it without quotes"
    return ""
