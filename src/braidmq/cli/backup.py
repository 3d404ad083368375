"""``braidmq backup`` and ``braidmq restore``: a whole node in a directory, and back."""

from __future__ import annotations

from pathlib import Path

import click

from braidmq.api import history as api
from braidmq.cli.ctl.app import Ctl, node_command
from braidmq.cli.ctl.show import size
from braidmq.cli.errors import CommandFailed
from braidmq.cli.history.answers import Bar, answer_lines


@node_command(None, "backup")
@click.argument("directory", type=click.Path(path_type=Path))
def backup(ctl: Ctl, directory: Path) -> None:
    """Make a backup of a running node in DIRECTORY, which must not be there yet.

    It holds everything that was acknowledged before the command began: records, durable sessions, retained and delayed messages,
    bans, and what was set at run time. On the disk of the node it takes little space at first, because tables are linked there;
    bring it to another disk.
    """
    target = directory.absolute()
    made: api.Made | None = None
    with Bar("copying", is_output_elsewhere=True) as bar:
        for line in answer_lines(ctl.node, "POST", "/backup", {"path": str(target)}):
            bar.see(line)
            if isinstance(line, api.Made):
                made = line
    if made is None:
        raise CommandFailed("the node does not say what it has made")
    click.echo(f"backed up {made.files} files, {size(made.total_bytes)}, to {directory}")


@click.command("restore")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--data-dir", type=click.Path(path_type=Path), required=True, help="The data directory to make: not there, or empty"
)
def restore(directory: Path, data_dir: Path) -> None:
    """Make a data directory from the backup in DIRECTORY; no node needs to run.

    Every file is checked. The log gets a new id, because from here on it is another log than the one that was backed up.
    """
    from braidmq.storage.backup import restore as restore_backup

    with Bar("copying", is_output_elsewhere=True) as bar:
        restored = restore_backup(directory, data_dir, bar.show_bytes)
    manifest = restored.manifest
    click.echo(
        f"restored {len(manifest.files)} files, {size(manifest.total_bytes)}, of {manifest.made_at} to {data_dir}; "
        "name it as node.data_dir and start the node"
    )
