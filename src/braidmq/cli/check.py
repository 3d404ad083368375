"""``braidmq check``: checks whether a node would start with a configuration."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import click

from braidmq.base.config import sources as config
from braidmq.base.config.sample import sample
from braidmq.base.errors import ConfigError
from braidmq.broker.listeners import check_certificates
from braidmq.broker.messages.hooks import find
from braidmq.storage.shard.classes import check_classes


@click.command("check")
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="The configuration file.  [default: check the defaults]"
)
@click.option("--show", is_flag=True, help="Print every key with its value and its origin.")
@click.option("--sample", "print_sample", is_flag=True, help="Print a sample file with every key, its meaning and its default.")
def check(file: Path | None, show: bool, print_sample: bool) -> None:
    """Check a configuration without starting anything. The environment applies as it would at start.

    The modules of hooks are imported. Whether the data directory can be created is tested with a temporary directory.
    """
    if print_sample:
        click.echo(sample(), nl=False)
        return
    loaded = config.load(file)
    check_classes(loaded.settings.history)
    check_certificates(loaded.settings)
    for name in loaded.settings.hooks.load:
        find(name)
    notes = [*loaded.notes, *_check_data_dir(Path(loaded.settings.node.data_dir))]
    if show:
        for key, value, origin in loaded.rows():
            click.echo(f"{key} = {value}  # {origin}")
    for note in notes:
        click.echo(f"note: {note}")
    click.echo("ok")


def _check_data_dir(data_dir: Path) -> list[str]:
    """Raise ConfigError if no node could store its data there; returns a note if only this user cannot."""
    key, place = "node.data_dir", data_dir.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise ConfigError(key, f"{place} is not a directory", "choose another directory")
    try:
        # Permissions and mount options are not enough to know: root may write everywhere, but not in /proc.
        Path(tempfile.mkdtemp(prefix=".braidmq-check-", dir=place)).rmdir()
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
            return [f"{key}: this user cannot write in {place}; the user that runs the node must be able to"]
        raise ConfigError(key, f"cannot create files in {place}: {error.strerror}", "choose another directory") from None
    return []
