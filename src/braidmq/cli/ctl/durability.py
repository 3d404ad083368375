"""``braidmq ctl durability``: the state of the log and its disk, once or live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from braidmq.cli.ctl.app import Ctl
from braidmq.cli.ctl.show import fields_text, make_table, moment, show_json, show_table, size, span
from braidmq.control.history import DurabilityInfo, DurableShard

_COLUMNS = ("shard", "committed up to", "kept from")
_MEANINGS = {
    "fsync": "fsync: messages are acknowledged once they are on disk",
    "os": "os: messages are acknowledged once the operating system has them; they survive a process crash, not a machine crash",
}


def show_durability(ctl: Ctl) -> None:
    """Show the state once; commit times cover the time since the start of the node."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/durability"))
        return
    now = ctl.node.get("/durability", DurabilityInfo)
    click.echo(fields_text(_fields(now, None)))
    click.echo()
    show_table(_COLUMNS, _rows(now), nothing="no shards")


def watch_durability(ctl: Ctl, interval_s: float) -> None:
    """Refresh the state until Ctrl-C; commit times cover the last interval."""
    console = Console(file=sys.stdout)
    try:
        if console.is_terminal and not ctl.json_wanted:
            with Live(console=console, auto_refresh=False) as live:
                for now, before in _looks(ctl, interval_s):
                    fields = Text(fields_text(_fields(now, before)) + "\n")
                    live.update(Group(fields, make_table(_COLUMNS, _rows(now))), refresh=True)
        for now, before in _looks(ctl, interval_s):
            click.echo(msgspec.json.encode(now) if ctl.json_wanted else fields_text(_fields(now, before)) + "\n")
    except KeyboardInterrupt:
        return  # Ctrl-C is the usual end


def _looks(ctl: Ctl, interval_s: float) -> Iterator[tuple[DurabilityInfo, DurabilityInfo | None]]:
    """The current and the previous state, at each interval, for ever."""
    before: DurabilityInfo | None = None
    while True:
        now = ctl.node.get("/durability", DurabilityInfo)
        yield now, before
        before = now
        time.sleep(interval_s)


def _fields(now: DurabilityInfo, before: DurabilityInfo | None) -> list[tuple[str, object]]:
    health = f"{now.health}: {now.reason}" if now.reason else now.health
    if now.needs_restart:
        health += " (until the node is restarted)"
    return [
        ("durability", _MEANINGS.get(now.mode, now.mode)),
        ("health", health),
        ("clock", now.clock_alarm or "in step"),
        ("waiting for the disk", f"{size(now.pending_bytes)}{', publishers are throttled' if now.congested else ''}"),
        ("last commit", None if now.commit_age_s is None else f"{now.commit_age_s:.1f} s ago"),
        ("commits", _commits(now, before)),
        ("refused", now.refused),
        ("on disk", size(now.disk_bytes)),
        ("disk free", size(now.disk_free_bytes)),
        ("waiting for compaction", size(now.pending_compaction_bytes)),
    ]


def _commits(now: DurabilityInfo, before: DurabilityInfo | None) -> str | None:
    if now.mode != "fsync":
        return None  # the operating system decides when to write
    if before is None or now.commits < before.commits:  # the node was restarted, so its counters were reset
        mean_s = now.commit_s_total / now.commits if now.commits else 0.0
        return f"{now.commits} since the start, mean {mean_s * 1e3:.1f} ms, longest {now.commit_s_max * 1e3:.1f} ms"
    commits = now.commits - before.commits
    mean_s = (now.commit_s_total - before.commit_s_total) / commits if commits else 0.0
    longest = "" if now.commit_s_max_recent is None else f", longest recently {now.commit_s_max_recent * 1e3:.1f} ms"
    return f"{commits / max(now.at - before.at, 1e-3):.0f} per second, mean {mean_s * 1e3:.1f} ms{longest}"


def _rows(now: DurabilityInfo) -> list[list[object]]:
    return [[each.shard, _committed(each, now.at), moment(each.floor) if each.floor else "the beginning"] for each in now.shards]


def _committed(shard: DurableShard, at: float) -> str | None:
    if not shard.watermark:
        return None
    return f"{moment(shard.watermark)} ({span(max(0.0, at - shard.watermark / 1e6))} ago)"
