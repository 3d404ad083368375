"""``braidmq ctl sessions``: sessions and their backlogs."""

from __future__ import annotations

from typing import Final

import click

from braidmq.cli.ctl.app import Ctl, node_command, paged, show_list
from braidmq.cli.ctl.show import ago, ahead, printable, show_fields, show_json, show_table, span
from braidmq.control.contract import SessionDetail, SessionInfo, SubscriptionInfo

sessions = click.Group("sessions", help="Sessions and their backlogs.")

SUBSCRIPTION_COLUMNS: Final = ("client", "filter", "qos", "no local", "retain as published", "identifier")


def subscription_row(each: SubscriptionInfo) -> list[object]:
    """A subscription under `SUBSCRIPTION_COLUMNS`."""
    return [each.client_id, each.topic_filter, each.qos, each.no_local, each.retain_as_published, each.subscription_identifier]


@node_command(sessions, "ls")
@paged
def sessions_ls(ctl: Ctl, everything: bool, limit: int, contains: str | None) -> None:
    """List sessions and how far each is behind the log.

    BEHIND is the approximate number of records a session has not read yet (some or none of them match its subscriptions), and
    LAG the time they cover. `show` also shows the age of the oldest waiting message.
    """

    def row(each: SessionInfo) -> list[object]:
        kept = "durable" if each.durable else "in memory"
        state = "connected" if each.connected else "away"
        since = ago(each.connected_at if each.connected else each.disconnected_at)
        return [each.client_id, kept, state, since, _expiry(each), each.subscriptions, each.inflight, each.queue_messages,
                each.records_behind, span(each.lag_s)]  # fmt: skip

    columns = ("client", "kept", "state", "since", "expires", "subscriptions", "inflight", "queued", "behind", "lag")
    show_list(ctl, "/sessions", SessionInfo, columns, row, everything=everything, limit=limit, contains=contains)


@node_command(sessions, "show")
@click.argument("client_id")
def sessions_show(ctl: Ctl, client_id: str) -> None:
    """Show one session."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/session", id=client_id))
        return
    detail = ctl.node.get("/session", SessionDetail, id=client_id)
    session = detail.session
    show_fields(
        [
            ("client", session.client_id),
            ("kept", "on disk" if session.durable else "in memory"),
            ("connected", session.connected),
            ("since", ago(session.connected_at if session.connected else session.disconnected_at)),
            ("user", session.user_name),
            ("session expiry", "never" if session.session_expiry_s is None else span(session.session_expiry_s)),
            ("expires", _expiry(session)),
            ("will", detail.will_topic),
            ("inflight", session.inflight),
            ("queued in memory", session.queue_messages),
            ("behind the log", f"about {session.records_behind} records, {span(session.lag_s)}"),
            ("oldest waiting", ago(session.oldest_at)),
            ("dropped", detail.messages_dropped),
            ("subscriptions", session.subscriptions),
        ]
    )
    if detail.subscriptions:
        click.echo()
        show_table(SUBSCRIPTION_COLUMNS, map(subscription_row, detail.subscriptions), nothing="")
    for name, reason in detail.silent.items():
        click.echo(f"what waits at {name} is not counted: {reason}", err=True)


@node_command(sessions, "drop")
@click.argument("client_ids", metavar="CLIENT_ID...", nargs=-1, required=True)
def sessions_drop(ctl: Ctl, client_ids: tuple[str, ...]) -> None:
    """End sessions with their connections, subscriptions and backlogs."""
    for client_id in client_ids:
        ctl.node.delete("/session", id=client_id)
        click.echo(f"dropped {printable(client_id)}")


def _expiry(session: SessionInfo) -> str | None:
    if session.session_expiry_s is None:
        return "never"
    return ahead(session.expires_at)
