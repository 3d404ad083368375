"""``braidmq check``: is this configuration one that a node would start with?"""

from __future__ import annotations

from pathlib import Path

import click

from braidmq.base import config
from braidmq.base.sample import sample
from braidmq.storage.classes import check_classes


@click.command("check")
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="The configuration file; without it the defaults are checked."
)
@click.option("--show", is_flag=True, help="Print every key with its value and where that comes from.")
@click.option("--sample", "print_sample", is_flag=True, help="Print a file with every key, its meaning and its default.")
def check(file: Path | None, show: bool, print_sample: bool) -> None:
    """Check a configuration without starting anything. The environment counts as it would at start."""
    if print_sample:
        click.echo(sample(), nl=False)
        return
    loaded = config.load(file)
    check_classes(loaded.settings.history)
    if show:
        for key, value, origin in loaded.rows():
            click.echo(f"{key} = {value}  # {origin}")
    for note in loaded.notes:
        click.echo(f"note: {note}")
    click.echo("ok")
