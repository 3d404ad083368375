"""``braidmq backup`` and ``braidmq restore``: copy a whole node to a directory, and restore it."""

from __future__ import annotations

from pathlib import Path

import click

from braidmq.cli.ctl.app import Ctl, node_command
from braidmq.cli.ctl.show import size
from braidmq.cli.errors import CommandFailed
from braidmq.cli.history.answers import Bar, answer_lines
from braidmq.control import history as api


@node_command(None, "backup")
@click.argument("directory", type=click.Path(path_type=Path))
def backup(ctl: Ctl, directory: Path) -> None:
    """Back up a running node to DIRECTORY, which must not exist yet.

    It contains everything acknowledged before the command started: records, durable sessions, retained and delayed messages,
    bans, and values set at run time. On the disk of the node it takes little space at first, because tables are hard links;
    copy it to another disk.

    With several cores it covers the shards that this core leads: back up each core, and etcd.
    """
    target = directory.absolute()
    made: api.Made | None = None
    with Bar("copying", is_output_elsewhere=True) as bar:
        for line in answer_lines(ctl.node, "POST", "/backup", {"path": str(target)}):
            bar.see(line)
            if isinstance(line, api.Made):
                made = line
    if made is None:
        raise CommandFailed("the node did not report the result of the backup")
    click.echo(f"backed up {made.files} files, {size(made.total_bytes)}, to {directory}")
    if made.other_cores:
        shards, others = ", ".join(map(str, made.shards)), ", ".join(made.other_cores)
        click.echo(f"it covers the shards {shards}; the others are led by {others}: back up these cores and etcd as well")


@click.command("restore")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="The data directory to create; it must be missing or empty.",
)
@click.option("--keep-log-id", is_flag=True, help="For one of several cores, whose cluster knows the log by its id.")
def restore(directory: Path, data_dir: Path, keep_log_id: bool) -> None:
    """Restore a data directory from the backup in DIRECTORY; no node needs to run.

    Every file is checked. The log gets a new id, because from now on it differs from the log that was backed up. With several
    cores they share the id, so it must stay; readers cannot tell then that messages are missing from the log.
    """
    from braidmq.storage.upkeep.backup import restore as restore_backup

    with Bar("copying", is_output_elsewhere=True) as bar:
        restored = restore_backup(directory, data_dir, bar.show_bytes, keeps_log_id=keep_log_id)
    manifest = restored.manifest
    click.echo(
        f"restored {len(manifest.files)} files, {size(manifest.total_bytes)}, of {manifest.made_at} to {data_dir}; "
        "set node.data_dir to it and start the node"
    )
