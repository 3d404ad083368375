"""A configuration file with every key, its meaning and its default, generated from the keys themselves."""

from __future__ import annotations

from braidmq.base.config.checks import KINDS, TLS_KEYS, TLS_KINDS, WEBSOCKET_KEYS, WEBSOCKET_KINDS
from braidmq.base.config.keys import Key, KeyTable, Named, Path, dotted, format_value, schema
from braidmq.base.config.settings import Settings

_BINDS = {"tcp": "127.0.0.1:1883", "tls": "127.0.0.1:8883", "ws": "127.0.0.1:8083", "wss": "127.0.0.1:8084"}
_SAMPLE_VALUES = {
    ("listeners", "sni", "cert_file"): "a.example.crt",
    ("listeners", "sni", "key_file"): "a.example.key",
    ("links", "server"): "b.example:8883",
}


def sample() -> str:
    """The text of the file, with all defaults; keys without a default are comments."""
    lines = ["# Every key of braidmq with its default. Leave out what you do not change."]
    for name, node in schema().children.items():
        match node:
            case KeyTable() if name == "listeners":
                for kind in KINDS:
                    lines += _listener(kind, node.children[kind])
            case KeyTable():
                lines += [
                    "",
                    *_header(node.meaning, (name,)),
                    *(_line(key) for key in node.children.values() if isinstance(key, Key)),
                ]
            case Named():
                lines += ["", *_comment(_named((name, "region-b"), node.element, _SAMPLE_VALUES["links", "server"]))]
            case Key():
                lines.append(_line(node))
    return "\n".join(lines) + "\n"


def fits_listener(kind: str, key: str) -> bool:
    """Whether listeners of this kind may have the key."""
    return (kind in TLS_KINDS or key not in TLS_KEYS) and (kind in WEBSOCKET_KINDS or key not in WEBSOCKET_KEYS)


def _listener(kind: str, node: object) -> list[str]:
    assert isinstance(node, Named)
    path = ("listeners", kind, "default")
    lines = ["", *_header(node.element.meaning, path), f'bind = "{_BINDS[kind]}"']
    lines += _comment(
        [
            _line(key)
            for name, key in node.element.children.items()
            if isinstance(key, Key) and name != "bind" and fits_listener(kind, name)
        ]
    )
    if kind in TLS_KINDS:
        sni = node.element.children["sni"]
        assert isinstance(sni, Named)
        lines += [f"# [{dotted((*path, 'sni', 'a.example'))}]"]
        lines += [f'# {name} = "{_SAMPLE_VALUES["listeners", "sni", name]}"' for name in sni.element.children]
    # Only the listeners that exist by default are active in the file; the others are comments.
    return lines if getattr(Settings().listeners, kind) else ["", *_comment(lines[1:])]


def _named(path: Path, table: KeyTable, server: str) -> list[str]:
    keys = [key for key in table.children.values() if isinstance(key, Key)]
    return [
        *_header(table.meaning, path),
        *(f'{key.path[-1]} = "{server}"  # {key.meaning}' if key.required else _line(key) for key in keys),
    ]


def _header(meaning: str, path: Path) -> list[str]:
    return [f"# {meaning}".replace("``", "`"), f"[{dotted(path)}]"]


def _line(key: Key) -> str:
    if key.default is None:
        return f"# {key.path[-1]} =  # {key.meaning}"
    return f"{key.path[-1]} = {format_value(key.default)}  # {key.meaning}"


def _comment(lines: list[str]) -> list[str]:
    return [line if line.startswith("#") else f"# {line}" for line in lines]
