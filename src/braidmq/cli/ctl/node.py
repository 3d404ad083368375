"""``braidmq ctl node``: empties a worker or replicant before it is stopped."""

from __future__ import annotations

import time
from typing import Final

import click
import msgspec

from braidmq.base.units import parse_seconds
from braidmq.cli.ctl.app import Ctl, node_command
from braidmq.cli.ctl.show import printable, show_json
from braidmq.control.cluster import RATE_DEFAULT, RATE_MAX, DrainRequest, DrainStatus

node = click.Group("node", help="One node of a cluster.")

_LOOK_S: Final = 0.5


@node_command(node, "drain")
@click.argument("name", metavar="[NODE]", required=False, default="")
@click.option("--rate", type=click.IntRange(1, RATE_MAX), default=RATE_DEFAULT, show_default=True, help="Clients per second.")
@click.option("--deadline", help="Disconnect all that are left after this time, such as 10m.  [default: none]")
def drain(ctl: Ctl, name: str, rate: int, deadline: str | None) -> None:
    """Send the clients of a worker or replicant to other nodes, until none is left.

    The node accepts no clients from then on. MQTT 5 clients get DISCONNECT 0x9C, with cluster.server_reference if it is set;
    others are disconnected. Their wills are published only if they do not come back anywhere within 30 seconds or the will's
    delay. NODE is required on the core, and left out on the node itself. Ctrl-C ends the command, not the drain; a second one
    with another rate changes it. Afterwards stop or restart the node.
    """
    now = empty(ctl, "/drain", DrainRequest(node=name, rate=rate, deadline_s=parse_deadline(deadline)))
    if ctl.json_wanted:
        show_json(msgspec.json.encode(now))
    else:
        click.echo(f"{printable(now.node)} is drained: {now.moved} clients were sent away")


def parse_deadline(text: str | None) -> float | None:
    """The option of that name."""
    if text is None:
        return None
    try:
        return float(parse_seconds(text))
    except ValueError as problem:
        raise click.UsageError(f"--deadline {text}: {problem}") from None


def empty(ctl: Ctl, path: str, request: DrainRequest) -> DrainStatus:
    """Begin a drain, and show how far it is until it is done."""
    now = msgspec.json.decode(ctl.node.send("POST", path, request), type=DrainStatus)
    while not now.is_done:
        if not ctl.json_wanted:
            click.echo(f"{printable(now.node)}: {now.moved} clients sent away, {now.left} left")
        time.sleep(_LOOK_S)
        now = ctl.node.get("/drain", DrainStatus, node=request.node)
    return now
