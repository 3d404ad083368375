"""``braidmq import-mosquitto``: converts a Mosquitto configuration to one of braidmq."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
import tomli_w

from braidmq.access import files
from braidmq.base.config import sources as config
from braidmq.base.errors import ConfigError
from braidmq.cli.errors import CommandFailed
from braidmq.cli.mosquitto import conf as mosquitto_conf
from braidmq.cli.mosquitto.convert import Import
from braidmq.cli.mosquitto.report import Outcome, ReportRow

CONFIG_FILE = "braidmq.toml"

_COLOURS: dict[Outcome, str] = {"taken": "green", "changed": "yellow", "none": "red"}
EXIT_NEEDS_A_HAND = 3


@click.command("import-mosquitto")
@click.argument("conf", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="Output directory."
)
@click.option("--force", is_flag=True, help="Overwrite the output of an earlier import.")
def import_mosquitto(conf: Path, folder: Path, force: bool) -> None:
    """Write braidmq.toml, and copies of the password and ACL files, from the mosquitto.conf CONF.

    Reports for every line whether it was taken, changed, or has no counterpart. Certificates stay where they are; the password
    file is copied because its hashes are upgraded as users log in. Exits with 3 if a node would not start with the result yet.
    """
    result = Import(mosquitto_conf.read(conf), folder)
    to_write = {folder.absolute() / CONFIG_FILE: _as_toml(result, conf), **result.files}
    in_the_way = [path for path in to_write if path.exists()]
    if in_the_way and not force:
        raise CommandFailed(f"{in_the_way[0]} already exists; use --force to overwrite it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in to_write.items():
        files.replace(str(path), text.encode())
    _print_rows(result.rows)
    click.echo()
    for path in to_write:
        click.echo(f"written: {path}")
    _check(result)


def _as_toml(result: Import, conf: Path) -> str:
    head = [f"# Converted from {conf} by braidmq import-mosquitto."]
    head += [f"# {key} is not enabled: {why}." for key, why in result.held.items()]
    return "\n".join(head) + "\n\n" + tomli_w.dumps(result.tables)


def _print_rows(rows: list[ReportRow]) -> None:
    cells = [("-", "-") if row.line is None else (row.line.where, row.line.shown) for row in rows]
    where_width = max((len(where) for where, _ in cells), default=0)
    shown_width = min(50, max((len(shown) for _, shown in cells), default=0))
    for row, (where, shown) in zip(rows, cells, strict=True):
        outcome = click.style(f"{row.outcome:<7}", fg=_COLOURS[row.outcome])
        click.echo(f"{outcome}  {where:<{where_width}}  {shown:<{shown_width}}  {row.text}")
    counts = Counter(row.outcome for row in rows)
    click.echo(f"\n{counts['taken']} taken, {counts['changed']} changed, {counts['none']} without a counterpart")


def _check(result: Import) -> None:
    for key, why in result.held.items():
        click.echo(f"attention: {key} is not enabled: {why}")
    try:
        config.from_tables(result.tables)
    except ConfigError as problem:
        raise CommandFailed(f"the result needs manual work: {problem}", EXIT_NEEDS_A_HAND) from None
