"""The commands of ``braidmq history``. All of them use the running node, alongside its other work."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TextIO, cast, get_args

import click
import msgspec

from braidmq.cli.ctl.app import Ctl, node_command, node_group
from braidmq.cli.ctl.show import ago, moment, printable, show_fields, show_json, show_table, size, span
from braidmq.cli.history.answers import Bar, answer_lines, tell_gap
from braidmq.cli.history.formats import Format, check_output, record_writer, row_of
from braidmq.control import history as api

history = node_group("history", "Read and manage the history of a running node.")

_STARTS: Final = "earliest, latest, ms since 1970, 2024-03-01T12:00:00Z, or -24h for that long ago"
_FILTERS_SHOWN: Final = 3


@node_command(history, "ls")
@click.argument("topic_filter", metavar="[FILTER]", default="#")
@click.option("--from", "start", default="-1h", show_default=True, help=f"Count from here: {_STARTS}.")
@click.option("--to", "end", default="latest", show_default=True, help="Count records from before this time.")
def history_ls(ctl: Ctl, topic_filter: str, start: str, end: str) -> None:
    """List recently recorded topics with counts and sizes.

    All records of the time range are read, so a long range takes a while.
    """
    topics: list[api.Topic] = []
    is_cut = False
    with Bar("counting", is_output_elsewhere=True) as bar:
        for line in answer_lines(ctl.node, "GET", "/history/topics", filter=topic_filter, **{"from": start, "to": end}):
            bar.see(line)
            match line:
                case api.Topic():
                    topics.append(line)
                case api.GapLine():
                    tell_gap(line)
                case api.End():
                    is_cut = line.is_cut
    if ctl.json_wanted:
        for topic in topics:
            click.echo(msgspec.json.encode(topic))
    else:
        rows = ([each.topic, each.records, size(each.payload_bytes), ago(each.newest / 1e6)] for each in topics)
        show_table(("topic", "records", "payloads", "newest"), rows, nothing=f"no records since {start}")
    if is_cut:
        click.echo(f"... more than these {len(topics)} topics match: use a narrower filter", err=True)


@node_command(history, "tail")
@click.argument("topic_filters", metavar="FILTER...", nargs=-1, required=True)
@click.option("--from", "start", default="latest", show_default=True, help=f"Start here: {_STARTS}.")
@click.option("-C", "--count", type=click.IntRange(1), help="Exit after this many records.")
def history_tail(ctl: Ctl, topic_filters: tuple[str, ...], start: str, count: int | None) -> None:
    """Follow new records until Ctrl-C.

    Unlike `sub`, it prints only messages that are on disk.
    """
    parameters = {"from": start, "follow": 1, "limit": count, "filter": list(topic_filters)}
    try:
        for line in answer_lines(ctl.node, "GET", "/history/records", **parameters):
            match line:
                case api.RecordLine():
                    click.echo(msgspec.json.encode(row_of(line)) if ctl.json_wanted else _line(line))
                case api.GapLine():
                    tell_gap(line)
    except KeyboardInterrupt:
        return  # Ctrl-C is the usual end


def _line(record: api.RecordLine) -> str:
    payload = printable(record.payload) if record.encoding == "utf-8" else f"base64:{record.payload}"
    return f"{moment(record.timestamp)} {printable(record.topic)} {payload}"


@node_command(history, "cat")
@click.argument("topic_filters", metavar="FILTER...", nargs=-1, required=True)
@click.option("--from", "start", default="earliest", show_default=True, help=f"Start here: {_STARTS}.")
@click.option("--to", "end", default="latest", show_default=True, help="End before this time; latest means now.")
@click.option(
    "--format", "format_", type=click.Choice(get_args(Format)), default="json", show_default=True, help="Output format."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to this file; it appears when the output is complete."
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many records.")
def history_cat(
    ctl: Ctl, topic_filters: tuple[str, ...], start: str, end: str, format_: str, output: Path | None, limit: int | None
) -> None:
    """Write records in order of time, as JSON lines, CSV or Parquet.

    \b
      braidmq history cat 'plant/+/temperature' --from -24h
      braidmq history cat '#' --from 2024-03-01T00:00:00Z --to 2024-03-02T00:00:00Z --format parquet -o march-1.parquet
    """
    chosen = cast(Format, format_)
    check_output(chosen, output)
    parameters = {"from": start, "to": end, "limit": limit, "filter": list(topic_filters)}
    is_elsewhere = output is not None or not sys.stdout.isatty()
    count = 0
    bar = Bar("reading", is_output_elsewhere=is_elsewhere)
    with _opened(output) as out, record_writer(chosen, out) as writer, bar:
        for line in answer_lines(ctl.node, "GET", "/history/records", **parameters):
            bar.see(line)
            match line:
                case api.RecordLine():
                    writer.write(line)
                    count += 1
                case api.GapLine():
                    tell_gap(line)
    if output is not None:
        click.echo(f"{count} records written to {output}", err=True)


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that appears under its name when it is complete."""
    if output is None:
        yield sys.stdout.buffer
        return
    handle, temporary = tempfile.mkstemp(prefix=f"{output.name}.partial-", dir=output.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
        os.replace(temporary, output)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@node_command(history, "stats")
def history_stats(ctl: Ctl) -> None:
    """Show the size and time range of the log, and its readers."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/history/stats"))
        return
    stats = ctl.node.get("/history/stats", api.HistoryStats)
    oldest = min((each.oldest for each in stats.shards if each.oldest), default=None)
    newest = max((each.newest for each in stats.shards if each.newest), default=None)
    show_fields(
        [
            ("log id", stats.log_id),
            ("records", stats.records),
            ("bytes before compression", size(stats.size_bytes)),
            ("oldest", None if oldest is None else moment(oldest)),
            ("newest", None if newest is None else moment(newest)),
        ]
    )
    click.echo()
    rows = (
        [each.shard, each.records, size(each.size_bytes), each.epochs, each.generations,
         moment(each.oldest) if each.oldest else None, moment(each.newest) if each.newest else None]
        for each in stats.shards
    )  # fmt: skip
    show_table(("shard", "records", "bytes", "epochs", "generations", "oldest", "newest"), rows, nothing="no shards")
    if stats.readers:
        click.echo()
        readers = ([each.name, each.user, _filters(each), _behind(each), span(each.lag_s), each.pins] for each in stats.readers)
        show_table(("reader", "user", "reads", "behind", "lag", "pins"), readers, nothing="")
    for name, reason in stats.silent.items():
        click.echo(f"note: the shards of core {name} are missing: {reason}", err=True)
    if stats.readers_more:
        click.echo(f"... and {stats.readers_more} more readers", err=True)


def _behind(reader: api.ReaderInfo) -> str:
    if reader.is_upper_bound:
        return f"at most {reader.records_behind}"
    return f"~{reader.records_behind}" if reader.is_estimate else str(reader.records_behind)


def _filters(reader: api.ReaderInfo) -> str | None:
    more = len(reader.filters) - _FILTERS_SHOWN
    shown = " ".join(reader.filters[:_FILTERS_SHOWN])
    return (f"{shown} and {more} more" if more > 0 else shown) or None


@node_command(history, "generations")
def history_generations(ctl: Ctl) -> None:
    """List the generations: runs of records with one layout of keys."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/history/generations"))
        return
    rows = (
        [each.shard, each.number, each.layout, each.parameters,
         moment(each.first_epoch) if each.first_epoch else "the beginning", each.records, size(each.size_bytes)]
        for each in ctl.node.get("/history/generations", list[api.GenerationInfo])
    )  # fmt: skip
    show_table(("shard", "generation", "layout", "parameters", "begins", "records", "bytes"), rows, nothing="no generations")


@node_command(history, "patterns")
def history_patterns(ctl: Ctl) -> None:
    """List the learned topic patterns: topic filters with + for each level that varies."""
    if ctl.json_wanted:
        show_json(ctl.node.get_raw("/history/patterns"))
        return
    of_shards = ctl.node.get("/history/patterns", list[api.ShardPatterns])
    counts = Counter(pattern for each in of_shards for pattern in each.patterns)
    show_table(("pattern", "shards"), sorted(counts.items()), nothing="no patterns: no records yet, or the layout is hashed")


@node_command(history, "forget")
@click.argument("readers", metavar="READER...", nargs=-1, required=True)
def history_forget(ctl: Ctl, readers: tuple[str, ...]) -> None:
    """Remove named readers, so that retention no longer waits for them.

    A reader that is still running reappears with its next batch.
    """
    for name in readers:
        ctl.node.delete("/history/reader", name=name)
        click.echo(f"forgot {printable(name)}")


@node_command(history, "relearn")
@click.option(
    "--patterns", type=click.File(), help="Use these patterns: one topic filter per line, with + for each level that varies."
)
@click.option(
    "--thresholds", help="With --patterns: number of names kept apart at the first level and at the other levels: 100,10."
)
def history_relearn(ctl: Ctl, patterns: TextIO | None, thresholds: str | None) -> None:
    """Start a generation with better patterns, if that makes reading cheaper; or with the patterns of a file.

    `braidmq pipeline learn` derives patterns from the whole history.
    """
    answer = ctl.node.send("POST", "/history/relearn", _relearn_request(patterns, thresholds))
    if ctl.json_wanted:
        show_json(answer)
        return
    done = msgspec.json.decode(answer, type=api.Relearned)
    click.echo(f"started a new generation: {done.reason}" if done.is_begun else f"nothing was changed: {done.reason}")


def _relearn_request(patterns: TextIO | None, thresholds: str | None) -> api.RelearnRequest:
    if patterns is None:
        if thresholds is not None:
            raise click.UsageError("--thresholds requires --patterns")
        return api.RelearnRequest()
    lines = [line.strip() for line in patterns]
    try:
        numbers = None if thresholds is None else tuple(int(each) for each in thresholds.split(","))
    except ValueError:
        raise click.UsageError(f"--thresholds takes numbers separated by commas, not {thresholds!r}") from None
    return api.RelearnRequest(patterns=tuple(line for line in lines if line and not line.startswith("//")), thresholds=numbers)
