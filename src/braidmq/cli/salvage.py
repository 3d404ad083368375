"""``braidmq salvage``: repair a damaged or incomplete log by discarding what is lost."""

from __future__ import annotations

from pathlib import Path

import click

from braidmq.base.errors import UsageError
from braidmq.cli.errors import CommandFailed


@click.command("salvage")
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, help="The data directory of a stopped node.")
@click.option("--accept-loss", is_flag=True, help="Required, because acknowledged messages may be lost.")
def salvage(data_dir: Path, accept_loss: bool) -> None:
    """Repair a log that a node cannot open because its write-ahead log is damaged or files are missing.

    Everything written before the damage is kept. Everything after it is discarded, acknowledged or not. The contents of missing
    files are lost; the mark log.mark, which records how far the log was on disk, is set to the actual state, so that the node
    starts again. Prefer to restore a backup, and copy the directory first. Damage in a table file is not repaired.
    """
    from braidmq.storage.engine.mark import mark_path
    from braidmq.storage.engine.store import Store

    place = data_dir / "log"
    has_log = (place / "CURRENT").exists()
    if not has_log and not mark_path(place).exists():
        raise UsageError(f"{data_dir} contains no log", "use the node.data_dir of a node that has run before")
    if not accept_loss:
        what = "discards everything after the damage" if has_log else "abandons the missing log"
        raise CommandFailed(f"nothing was done: salvage {what}; copy {data_dir}, then add --accept-loss")
    if not has_log:
        mark_path(place).unlink()
        click.echo(f"abandoned the missing log in {data_dir}; the node will start with an empty log")
        return
    with Store.open(place, (), salvage=True, is_marked=True) as store:
        store.sync()
    click.echo(f"repaired the log in {data_dir}: it keeps everything before the damage; start the node")
