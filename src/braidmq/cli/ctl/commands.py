"""The commands of ``braidmq ctl``. Options that locate the node may follow ``ctl`` or the command."""

from __future__ import annotations

import time
from typing import get_args

import click
import msgspec

from braidmq.base.units import parse_seconds
from braidmq.cli.ctl.app import Ctl, node_command, node_group, paged, show_list
from braidmq.cli.ctl.cluster import cluster
from braidmq.cli.ctl.durability import show_durability, watch_durability
from braidmq.cli.ctl.node import node
from braidmq.cli.ctl.registry import registry
from braidmq.cli.ctl.sessions import SUBSCRIPTION_COLUMNS, sessions, subscription_row
from braidmq.cli.ctl.show import ago, ahead, printable, show_fields, show_json, show_table, span
from braidmq.control.contract import (
    BanInfo,
    BanKind,
    ClientDetail,
    ClientInfo,
    ConfValue,
    ListenerStatus,
    LogLevel,
    RetainedInfo,
    Status,
    SubscriptionInfo,
    TopicInfo,
)
from braidmq.control.history import Token, TokenRequest

ctl = node_group(
    "ctl", "Inspect and control a running node, over the Unix socket in its data directory or over its HTTP address."
)


def _group(name: str, help_line: str) -> click.Group:
    group = click.Group(name, help=help_line)
    ctl.add_command(group)
    return group


_clients = _group("clients", "Clients and their sessions.")
ctl.add_command(sessions)
ctl.add_command(cluster)
ctl.add_command(registry)
ctl.add_command(node)
_subscriptions = _group("subscriptions", "Subscriptions.")
_topics = _group("topics", "Topic filters that have subscribers.")
_retained = _group("retained", "Retained messages.")
_listeners = _group("listeners", "Listeners.")
_bans = _group("bans", "Banned clients, users and addresses.")
_conf = _group("conf", "The configuration in force.")
_trace = _group("trace", "Trace clients and topics until Ctrl-C.")
_log = _group("log", "The node's log.")


@node_command(ctl, "status")
def status(ctl: Ctl) -> None:
    """Show the state of the node, and of a core's workers and replicants."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/status"))
        return
    now = ctl.node.get("/status", Status)
    show_fields(
        [
            ("node", now.node),
            ("version", now.version),
            ("ready", f"no, waiting for {now.not_ready}" if now.not_ready else "yes"),
            ("uptime", span(now.uptime_s)),
            ("connections", now.connections),
            ("sessions", now.sessions),
            ("subscriptions", now.subscriptions),
            ("retained", now.retained),
            ("listeners", ", ".join(f"{each.kind}:{each.name} {each.bind}" for each in now.listeners) or None),
        ]
    )
    if now.nodes:
        click.echo()
        rows = [[each.name, each.role, each.connections, each.trouble or None] for each in now.nodes]
        show_table(("node", "role", "connections", "trouble"), rows, nothing="")


@node_command(ctl, "token")
@click.argument("user")
@click.option("--valid", default="30d", show_default=True, help="Validity of the token, such as 12h or 30d.")
def token(ctl: Ctl, user: str, valid: str) -> None:
    """Print a token that lets readers of the history act as USER without the password."""
    try:
        valid_s = float(parse_seconds(valid))
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--valid") from None
    answer = ctl.node.send("POST", "/history/token", TokenRequest(user, valid_s))
    if ctl.json_wanted:
        show_json(answer)
    else:
        click.echo(msgspec.json.decode(answer, type=Token).token)


@node_command(ctl, "durability")
@click.option("--watch", is_flag=True, help="Refresh the output until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between refreshes.")
def durability(ctl: Ctl, watch: bool, interval: float) -> None:
    """Show the state of the durable log and of its disk."""
    if watch:
        watch_durability(ctl, interval)
    else:
        show_durability(ctl)


@node_command(_clients, "ls")
@paged
def clients_ls(ctl: Ctl, everything: bool, limit: int, contains: str | None) -> None:
    """List clients, connected or not."""

    def row(client: ClientInfo) -> list[object]:
        since = ago(client.connected_at if client.connected else client.disconnected_at)
        state = "connected" if client.connected else "away"
        queued = f"{client.queue_messages} ({client.queue_bytes} B)"
        return [client.client_id, state, since, client.user_name, client.peer or None, client.protocol, client.subscriptions,
                client.inflight, queued]  # fmt: skip

    columns = ("client", "state", "since", "user", "peer", "protocol", "subscriptions", "inflight", "queued")
    show_list(ctl, "/clients", ClientInfo, columns, row, everything=everything, limit=limit, contains=contains)


@node_command(_clients, "show")
@click.argument("client_id")
def clients_show(ctl: Ctl, client_id: str) -> None:
    """Show one client."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/client", id=client_id))
        return
    detail = ctl.node.get("/client", ClientDetail, id=client_id)
    client = detail.client
    show_fields(
        [
            ("client", client.client_id),
            ("connected", client.connected),
            ("since", ago(client.connected_at if client.connected else client.disconnected_at)),
            ("user", client.user_name),
            ("peer", client.peer or None),
            ("listener", client.listener or None),
            ("protocol", client.protocol),
            ("clean start", client.clean_start),
            ("keep alive", f"{client.keep_alive_s} s"),
            ("session expiry", span(client.session_expiry_s)),
            ("will", detail.will_topic),
            ("inflight", client.inflight),
            ("queued", f"{client.queue_messages} messages, {client.queue_bytes} bytes"),
            ("received", f"{detail.messages_received} messages, {detail.bytes_received} bytes"),
            ("sent", f"{detail.messages_sent} messages, {detail.bytes_sent} bytes"),
            ("dropped", f"{detail.messages_dropped} messages"),
            ("subscriptions", client.subscriptions),
        ]
    )
    if detail.subscriptions:
        click.echo()
        show_table(SUBSCRIPTION_COLUMNS, map(subscription_row, detail.subscriptions), nothing="")


@node_command(_clients, "kick")
@click.argument("client_ids", metavar="CLIENT_ID...", nargs=-1, required=True)
def clients_kick(ctl: Ctl, client_ids: tuple[str, ...]) -> None:
    """Close connections and end their sessions."""
    for client_id in client_ids:
        ctl.node.delete("/client", id=client_id)
        click.echo(f"kicked {printable(client_id)}")


@node_command(_subscriptions, "ls")
@click.option("--client", help="Show only those of this client.")
@paged
def subscriptions_ls(ctl: Ctl, client: str | None, everything: bool, limit: int, contains: str | None) -> None:
    """List subscriptions."""
    show_list(ctl, "/subscriptions", SubscriptionInfo, SUBSCRIPTION_COLUMNS, subscription_row,
          everything=everything, limit=limit, contains=contains, client=client)  # fmt: skip


@node_command(_topics, "ls")
@paged
def topics_ls(ctl: Ctl, everything: bool, limit: int, contains: str | None) -> None:
    """List topic filters with their number of subscribers."""
    show_list(ctl, "/topics", TopicInfo, ("filter", "subscribers"), lambda each: [each.topic_filter, each.subscribers],
          everything=everything, limit=limit, contains=contains)  # fmt: skip


@node_command(_retained, "ls")
@paged
def retained_ls(ctl: Ctl, everything: bool, limit: int, contains: str | None) -> None:
    """List retained messages."""

    def row(each: RetainedInfo) -> list[object]:
        return [each.topic, each.qos, each.payload_bytes, ago(each.stored_at), ahead(each.expires_at)]

    columns = ("topic", "qos", "bytes", "stored", "expires")
    show_list(ctl, "/retained", RetainedInfo, columns, row, everything=everything, limit=limit, contains=contains)


@node_command(_retained, "rm")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
def retained_rm(ctl: Ctl, topics: tuple[str, ...]) -> None:
    """Remove retained messages."""
    for topic in topics:
        ctl.node.delete("/retained", topic=topic)
        click.echo(f"removed {printable(topic)}")


@node_command(_listeners, "ls")
def listeners_ls(ctl: Ctl) -> None:
    """List listeners."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/listeners"))
        return
    rows = [
        [f"{each.kind}:{each.name}", each.bind, each.running, each.connections, each.connections_max]
        for each in ctl.node.get("/listeners", list[ListenerStatus])
    ]
    show_table(("listener", "address", "running", "connections", "maximum"), rows, nothing="no listeners")


@node_command(_bans, "ls")
@paged
def bans_ls(ctl: Ctl, everything: bool, limit: int, contains: str | None) -> None:
    """List bans."""
    show_list(ctl, "/bans", BanInfo, ("kind", "value", "ends", "reason"),
          lambda each: [each.kind, each.value, ahead(each.until) or "never", each.reason or None],
          everything=everything, limit=limit, contains=contains)  # fmt: skip


@node_command(_bans, "add")
@click.argument("kind", type=click.Choice(get_args(BanKind)))
@click.argument("value")
@click.option("--for", "duration", help="Duration, such as 10m or 24h.  [default: for ever]")
@click.option("--reason", default="", help="Reason, shown in the log and to other operators.")
def bans_add(ctl: Ctl, kind: BanKind, value: str, duration: str | None, reason: str) -> None:
    """Ban a client id, a user name or an address; matching connections are closed."""
    until = None
    if duration is not None:
        try:
            until = time.time() + parse_seconds(duration)
        except ValueError as error:
            raise click.UsageError(f"--for {duration}: {error}") from None
    answer = ctl.node.send("POST", "/bans", BanInfo(kind=kind, value=value, reason=reason, until=until))
    click.echo(f"banned {kind} {printable(value)}")
    for name in msgspec.json.decode(answer, type=dict[str, list[str]])["silent"]:
        click.echo(f"{name} has not confirmed the ban yet; clients that are connected there may stay until it does", err=True)


@node_command(_bans, "rm")
@click.argument("kind", type=click.Choice(get_args(BanKind)))
@click.argument("value")
def bans_rm(ctl: Ctl, kind: BanKind, value: str) -> None:
    """Remove a ban."""
    ctl.node.delete("/bans", kind=kind, value=value)
    click.echo(f"removed the ban of {kind} {printable(value)}")


@node_command(_conf, "show")
@click.argument("prefix", required=False, default="")
def conf_show(ctl: Ctl, prefix: str) -> None:
    """Show every value with its origin, or those under a table such as mqtt."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/conf", prefix=prefix))
        return
    _show_values(ctl.node.get("/conf", list[ConfValue], prefix=prefix))


@node_command(_conf, "set")
@click.argument("key")
@click.argument("value")
def conf_set(ctl: Ctl, key: str, value: str) -> None:
    """Set a value at run time; it survives a restart until it is unset."""
    _show_changed(ctl, ctl.node.send("PUT", "/conf", {"key": key, "value": value}))


@node_command(_conf, "unset")
@click.argument("key")
def conf_unset(ctl: Ctl, key: str) -> None:
    """Remove a value that was set at run time."""
    _show_changed(ctl, ctl.node.delete("/conf", key=key))


def _show_changed(ctl: Ctl, answer: bytes) -> None:
    if ctl.json_wanted:
        show_json(answer)
        return
    value = msgspec.json.decode(answer, type=ConfValue)
    _show_values([value])
    if value.note:
        click.echo(f"note: {value.note}", err=True)


def _show_values(values: list[ConfValue]) -> None:
    rows = [[each.key, each.value, each.origin] for each in values]
    show_table(("key", "value", "from"), rows, nothing="no such values")


@node_command(_trace, "client")
@click.argument("client_id")
def trace_client(ctl: Ctl, client_id: str) -> None:
    """Follow one client."""
    _follow(ctl, "client", client_id)


@node_command(_trace, "topic")
@click.argument("topic_filter")
def trace_topic(ctl: Ctl, topic_filter: str) -> None:
    """Follow the topics that a filter matches."""
    _follow(ctl, "topic", topic_filter)


def _follow(ctl: Ctl, kind: str, value: str) -> None:
    try:
        for line in ctl.node.lines("/trace", kind=kind, value=value):
            click.echo(msgspec.json.encode({"line": line}) if ctl.json_wanted else printable(line))
    except KeyboardInterrupt:
        return  # Ctrl-C is the usual end


@node_command(_log, "level")
@click.argument("level", type=click.Choice(get_args(LogLevel)), required=False)
def log_level(ctl: Ctl, level: LogLevel | None) -> None:
    """Show the log level, or set it until the next start."""
    answer = ctl.node.get_raw("/log/level") if level is None else ctl.node.send("PUT", "/log/level", {"level": level})
    if ctl.json_wanted:
        show_json(answer)
    else:
        click.echo(msgspec.json.decode(answer, type=dict[str, str])["level"])
