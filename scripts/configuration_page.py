"""Writes docs/configuration.md from the keys themselves: ``python scripts/configuration_page.py``."""

from __future__ import annotations

from pathlib import Path

from braidmq.base.config.checks import KINDS
from braidmq.base.config.keys import NAME, Key, Named, Table, dotted, format_value, schema

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

INTRODUCTION = """# Configuration

<!-- Made by scripts/configuration_page.py from src/braidmq/base/config/settings.py. -->

Without any configuration a node serves MQTT on 127.0.0.1:1883 and MQTT over WebSocket on 127.0.0.1:8083 (path `/mqtt`), with
metrics and status on 127.0.0.1:18083 and its files in `./data`. A TOML file changes that:

```toml
[listeners.tcp.default]
bind = "0.0.0.0:1883"

[access]
password_file = "passwords"

[session]
queue_messages_max = 50_000
queue_bytes_max = "64MiB"
```

```
braidmq check -c braidmq.toml           # validate; on error, one line and exit status 2
braidmq check -c braidmq.toml --show    # every value, and where it comes from
braidmq check --sample                  # a file with every key and its default
braidmq start -c braidmq.toml
```

## Where values come from

The environment takes precedence over values set at run time, these over the file, and the file over the defaults.

| source | how |
|---|---|
| environment | `BRAIDMQ_SESSION__QUEUE_WAIT=2s`: the key in capitals, two underscores for each dot; TOML or plain text |
| run time | `braidmq ctl conf set session.queue_wait 2s`, kept in `data_dir/overrides.toml`; not for `node.*` |
| file | `braidmq start -c FILE` |

`braidmq ctl conf show` shows the origin of each value. Relative file names are relative to the working directory of the node.

- Durations are seconds or have a unit: `10`, `"250ms"`, `"10s"`, `"5m"`, `"1h30m"`, `"7d"`. Sizes are bytes or have a unit:
  `65536`, `"64KiB"`, `"1MiB"`, `"2GiB"` (`"64KB"` is 64 000).
- An unknown key is an error that suggests the nearest known key. A value of the wrong type or out of range is an error, too.
- A file with a `[listeners...]` table defines all listeners: it replaces the default ones. The environment and
  values set at run time change or add single keys; `enabled = false` disables a listener.
- A listener that other machines can reach needs `access.password_file`, or client certificates as user names
  (`verify = "required"` with `user_from_certificate`), or an explicit `allow_anonymous = true`. A listener behind a proxy counts
  as reachable by others.
- `cluster`, `registry` and `links` belong to parts that are not there yet. Their default values are accepted, with a note at
  start; other values are rejected.

## Changing it while the node runs

`SIGHUP` makes the node reread its file. Clients that are still allowed stay connected. Keys marked **restart** below take
effect after a restart; the log names those that a reload has changed. An invalid file changes nothing, and the log says why.

## Keys
"""


def render() -> str:
    """The text of the page."""
    lines = [INTRODUCTION]
    for name, node in schema().children.items():
        match node:
            case Table() if name == "listeners":
                listener = node.children["tcp"]
                assert isinstance(listener, Named)
                kinds = ", ".join(f"`{kind}`" for kind in KINDS)
                lines += _section(
                    f"listeners.KIND.{NAME}", f"{_sentence(listener.element)} KIND is one of {kinds}.", listener.element
                )
                certificate = listener.element.children["sni"]
                assert isinstance(certificate, Named)
                heading = f'listeners.KIND.{NAME}.sni."HOST"'
                lines += _section(heading, _sentence(certificate.element), certificate.element)
            case Table():
                lines += _section(name, _sentence(node), node)
                for below in node.children.values():
                    if isinstance(below, Named):
                        lines += _section(dotted(below.element.path), _sentence(below.element), below.element)
            case Named(element=element):
                lines += _section(dotted(element.path), _sentence(element), element)
            case Key():
                raise AssertionError(f"{name} is outside any table")
    return "\n".join(lines).rstrip() + "\n"


def _section(heading: str, sentence: str, table: Table) -> list[str]:
    keys = [key for key in table.children.values() if isinstance(key, Key)]
    rows = [f"| `{key.path[-1]}` | {_cell(key.accepts)} | {_default(key)} | {_meaning(key)} |" for key in keys]
    return [f"### `[{heading}]`", "", sentence, "", "| key | value | default | meaning |", "|---|---|---|---|", *rows, ""]


def _sentence(table: Table) -> str:
    return table.meaning.replace("``", "`")


def _default(key: Key) -> str:
    if key.required:
        return "must be given"
    return "-" if key.default is None else f"`{_cell(format_value(key.default))}`"


def _meaning(key: Key) -> str:
    return _cell(key.meaning) + (" **restart**" if key.restart else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"written: {PAGE}")
