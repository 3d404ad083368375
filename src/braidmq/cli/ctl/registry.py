"""``braidmq ctl registry``: which connection has a client id, and how that is decided."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import msgspec

from braidmq.cli.ctl.app import Ctl, node_command
from braidmq.cli.ctl.show import printable, show_json, show_table
from braidmq.control.registry import RegistryChannel, RegistryEntry, RegistryReport, RegistryStats, SweepReport

registry = click.Group("registry", help="Which connection of the cluster has a client id. For any node of a cluster.")


@node_command(registry, "show")
@click.argument("client_id", metavar="CLIENTID")
def show(ctl: Ctl, client_id: str) -> None:
    """Show the channels of a client id, as its home knows them.

    VERSION is the time of the connection by the clock of the cluster, give or take BOUND; of several channels the highest is
    registered. A channel is leaving once it was told to end, until its node has released the client id.
    """
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/registry/client", id=client_id))
        return
    found = ctl.node.get("/registry/client", RegistryEntry, id=client_id)
    columns = ("node", "incarnation", "channel", "state", "version", "bound", "guard")
    show_table(columns, map(_row, found.channels), nothing="no channels")
    click.echo(f"\nhome {printable(found.home)}, term {found.term}, {found.waiting} claims wait")


@node_command(registry, "stats")
def stats(ctl: Ctl) -> None:
    """Show the registries of all cores: their tables, what became of claims, and how long takeovers took."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/registry"))
        return
    found = ctl.node.get("/registry", RegistryReport)
    columns = ("core", "clients", "waiting", "outcomes", "restarts", "probes", "fenced", "takeovers", "sweeps", "removed")
    show_table(columns, map(_stats_row, found.cores), nothing="no cores")
    _show_silent(found.silent)


@node_command(registry, "sweep")
def sweep(ctl: Ctl) -> None:
    """Compare the registries of all cores with the lists of their nodes now, which otherwise happens slowly all the time."""
    answer = ctl.node.send("POST", "/registry/sweep", None)
    if ctl.json_wanted:
        show_json(answer)
        return
    found = msgspec.json.decode(answer, type=SweepReport)
    rows = [(each.core, each.removed, each.found, "yes" if each.is_complete else "no") for each in found.cores]
    show_table(("core", "removed", "found", "complete"), rows, nothing="no cores")
    _show_silent(found.silent)


def _row(channel: RegistryChannel) -> tuple[object, ...]:
    at = datetime.fromtimestamp(channel.connected_at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    version = f"{at} {channel.registration}.{channel.counter}.{channel.arrival}"
    return (
        printable(channel.node),
        channel.incarnation,
        channel.channel,
        channel.state,
        version,
        f"{channel.bound_ms} ms",
        channel.guard,
    )


def _stats_row(each: RegistryStats) -> tuple[object, ...]:
    outcomes = " ".join(f"{name}={count}" for name, count in each.outcomes.items())
    takeovers = " ".join(f"<={bound:g}s:{count}" if bound else f"more:{count}" for bound, count in each.takeovers if count)
    return (
        each.core,
        each.clients,
        each.waiting,
        outcomes,
        each.restarts,
        each.probes,
        each.fenced,
        takeovers,
        each.sweeps,
        each.swept,
    )


def _show_silent(silent: dict[str, str]) -> None:
    for name, reason in sorted(silent.items()):
        click.echo(f"{printable(name)} does not answer: {reason}")
