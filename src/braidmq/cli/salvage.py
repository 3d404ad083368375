"""``braidmq salvage``: open a log whose end is damaged, at the price of what comes after the damage."""

from __future__ import annotations

from pathlib import Path

import click

from braidmq.base.errors import UsageError
from braidmq.cli.errors import CommandFailed


@click.command("salvage")
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, help="The data directory of a node that is stopped")
@click.option("--accept-loss", is_flag=True, help="Needed: messages that were acknowledged may be gone")
def salvage(data_dir: Path, accept_loss: bool) -> None:
    """Repair a log that a node refuses to open because its newest part, the write-ahead log, is damaged.

    What was written before the damage is kept. What came after it is dropped, acknowledged or not: a backup that can be restored
    is better, and a copy of the directory should be made first. Damage in a table file is not repaired.
    """
    from braidmq.storage.store import Store

    place = data_dir / "log"
    if not (place / "CURRENT").exists():
        raise UsageError(f"{data_dir} holds no log", "name the node.data_dir of a node that was started before")
    if not accept_loss:
        raise CommandFailed(
            f"nothing was done: salvage drops what comes after the damage; copy {data_dir}, then add --accept-loss"
        )
    with Store.open(place, (), salvage=True) as store:
        store.sync()
    click.echo(f"the log in {data_dir} opens again, with what came before the damage; start the node")
