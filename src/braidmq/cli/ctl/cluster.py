"""``braidmq ctl cluster``: the members of the cluster, as its core sees them."""

from __future__ import annotations

import click
import msgspec

from braidmq.cli.ctl.app import Ctl, node_command
from braidmq.cli.ctl.cluster_init import init
from braidmq.cli.ctl.node import empty, parse_deadline
from braidmq.cli.ctl.show import printable, show_json, show_table, span
from braidmq.control.cluster import (
    RATE_DEFAULT,
    RATE_MAX,
    ClockInfo,
    ClusterStatus,
    CoreInfo,
    DrainRequest,
    JoinPlan,
    MemberInfo,
    ShardLeader,
)

cluster = click.Group(
    "cluster",
    help="The nodes of a cluster, as its core sees them. A replicant joins by its configuration, which `join` prints.",
)


cluster.add_command(init)


@node_command(cluster, "status")
def status(ctl: Ctl) -> None:
    """List the members of the cluster.

    STATE: serving, silent (connected, and does not answer) or away (not connected). FEED says whether the node gets recorded
    messages at their commit or the core reads the log for it, ROUTES how far it knows the subscriptions on other nodes.

    CLOCK says how exactly the node knows the time of the cluster, by which connections are ordered, and which core gives it.

    With several cores a second table has all of them, with the shards that each leads and their terms.
    """
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/cluster"))
        return
    found = ctl.node.get("/cluster", ClusterStatus)
    columns = ("node", "role", "state", "clients", "filters", "feed", "routes", "clock", "incarnation", "address", "alarms")
    show_table(columns, map(_row, found.members), nothing="no members")
    click.echo(f"\ncluster {printable(found.cluster)}, version {found.version}")
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


@node_command(cluster, "shards")
def shards(ctl: Ctl) -> None:
    """List the shards of the log, the core that leads each, its state and its latest term."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/cluster/shards"))
        return
    rows = [[each.shard, each.core, each.state, each.term or None] for each in ctl.node.get("/cluster/shards", list[ShardLeader])]
    show_table(("shard", "core", "state", "term"), rows, nothing="no shards")


@node_command(cluster, "join")
@click.argument("name", metavar="NODE")
@click.option("--core", "is_core", is_flag=True, help="As a core, which is not possible yet.")
def join(ctl: Ctl, name: str, is_core: bool) -> None:
    """Print the configuration with which NODE joins as a replicant; start it with that on its own machine.

    A cluster cannot get more cores, because shards cannot move to another core.
    """
    answer = ctl.node.get_raw("/cluster/join", name=name, role="core" if is_core else "replicant")
    if ctl.json_wanted:
        show_json(answer)
        return
    plan = msgspec.json.decode(answer, type=JoinPlan)
    cores = ", ".join(f'"{printable(each)}"' for each in plan.core_nodes)
    click.echo(f'[node]\nname = "{plan.name}"\ncluster = "{printable(plan.cluster)}"\nrole = "replicant"\n')
    click.echo(f"[cluster]\ncore_nodes = [{cores}]")
    if plan.needs_secret:
        click.echo('secret = "..."  # that of the other nodes')
    if plan.needs_certificate:
        click.echo("# and cert_file, key_file and ca_file: TLS between nodes")


@node_command(cluster, "leave")
@click.argument("name", metavar="NODE")
@click.option("--rate", type=click.IntRange(1, RATE_MAX), default=RATE_DEFAULT, show_default=True, help="Clients per second.")
@click.option("--deadline", help="Disconnect all that are left after this time, such as 10m.  [default: none]")
def leave(ctl: Ctl, name: str, rate: int, deadline: str | None) -> None:
    """Let a replicant leave: drain it, end its process, and take it out of the list of members.

    A core cannot leave, because it leads shards. Ctrl-C ends the command, not the drain; run it again to continue.
    """
    now = empty(ctl, "/cluster/leave", DrainRequest(node=name, rate=rate, deadline_s=parse_deadline(deadline)))
    ctl.node.delete("/cluster/leave", name=name)
    if ctl.json_wanted:
        show_json(msgspec.json.encode(now))
    else:
        click.echo(f"{printable(name)} has left: {now.moved} clients were sent away")


def _core_row(core: CoreInfo) -> list[object]:
    shards = " ".join(f"{shard}({term})" for shard, term in sorted(core.terms.items()))
    return [core.name, core.state, core.incarnation or None, core.address or None, shards]


def _clock(clock: ClockInfo | None) -> str | None:
    if clock is None:
        return None
    if clock.bound_ms is None:
        return "not known"
    return f"reference, ±{clock.bound_ms} ms" if clock.is_reference else f"±{clock.bound_ms} ms"


def _row(member: MemberInfo) -> list[object]:
    feed = f"{span(member.feed_lag_s)} behind" if member.feed == "behind" else member.feed or None
    routes = f"{member.rlog}, {member.rlog_lag} behind" if member.rlog_lag else member.rlog or None
    return [member.name, member.role, member.state, member.clients, member.routes, feed, routes, _clock(member.clock),
            member.incarnation, member.address or None, "; ".join(member.alarms) or None]  # fmt: skip
