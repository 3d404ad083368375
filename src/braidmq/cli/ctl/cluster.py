"""``braidmq ctl cluster``: the members of the cluster, as its core sees them."""

from __future__ import annotations

import click

from braidmq.cli.ctl.app import Ctl, node_command
from braidmq.cli.ctl.show import printable, show_json, show_table, span
from braidmq.control.cluster import ClusterStatus, CoreInfo, MemberInfo

cluster = click.Group(
    "cluster",
    help="The nodes of a cluster, as its core sees them. There is no command to add or remove a node: it joins by its "
    "configuration (cluster.core_nodes) and leaves when it is stopped.",
)


@node_command(cluster, "status")
def status(ctl: Ctl) -> None:
    """List the members of the cluster.

    STATE: serving, silent (connected, and does not answer) or away (not connected). FEED says whether the node gets recorded
    messages at their commit or the core reads the log for it, ROUTES how far it knows the subscriptions on other nodes.

    With several cores a second table has all of them, with the shards that each leads and their terms.
    """
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/cluster"))
        return
    found = ctl.node.get("/cluster", ClusterStatus)
    columns = ("node", "role", "state", "clients", "filters", "feed", "routes", "incarnation", "address", "alarms")
    show_table(columns, map(_row, found.members), nothing="no members")
    if found.cores:
        click.echo()
        show_table(("core", "state", "incarnation", "address", "shards (terms)"), map(_core_row, found.cores), nothing="no cores")


@node_command(cluster, "forget")
@click.argument("names", metavar="NODE...", nargs=-1, required=True)
def forget(ctl: Ctl, names: tuple[str, ...]) -> None:
    """Declare replicants that do not answer dead: their clients count as lost, and their wills are published.

    A node that comes back drops its clients and joins as a new one. Without this command a replicant without a connection
    counts as dead after cluster.lease.
    """
    for name in names:
        ctl.node.delete("/cluster/node", name=name)
        click.echo(f"{printable(name)} is dead")


def _core_row(core: CoreInfo) -> list[object]:
    shards = " ".join(f"{shard}({term})" for shard, term in sorted(core.terms.items()))
    return [core.name, core.state, core.incarnation or None, core.address or None, shards]


def _row(member: MemberInfo) -> list[object]:
    feed = f"{span(member.feed_lag_s)} behind" if member.feed == "behind" else member.feed or None
    routes = f"{member.rlog}, {member.rlog_lag} behind" if member.rlog_lag else member.rlog or None
    return [member.name, member.role, member.state, member.clients, member.routes, feed, routes, member.incarnation,
            member.address or None, "; ".join(member.alarms) or None]  # fmt: skip
