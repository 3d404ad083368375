"""`learn`: derives topic patterns from the whole history and estimates whether they would make reads of the log cheaper.

Spark reduces the history to one row per topic and shard; the rest runs here on the driver (`patterns`, `seek_cost`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braidmq.base.errors import UsageError
from braidmq.control.client import ControlClient
from braidmq.control.contract import SOCKET_NAME, TOKEN_NAME
from braidmq.control.history import HistoryStats, Relearned, RelearnRequest, ShardPatterns
from braidmq.spark.jobs.framework.job import Job, job_command
from braidmq.spark.jobs.framework.patterns import Patterns
from braidmq.spark.jobs.framework.progress import show_rows, show_summary
from braidmq.spark.jobs.learn.patterns import NAMES_MAX, Proposal, TopicStats, example_filters, propose
from braidmq.spark.jobs.learn.seek_cost import FilterCost, compare

# Maximum number of topics on the driver; of more topics, an even sample is used.
TOPICS_MAX: Final = 1_000_000
_SHOWN: Final = 20
# The limit of the broker.
_APPLIED_MAX: Final = 4096
# The node may be busy serving the reads of this job.
_TIMEOUT_S: Final = 60.0


class Census(msgspec.Struct, frozen=True):
    """The topics of a history, the time it covers, and the sampling ratio (one of how many topics)."""

    topics: list[TopicStats]
    seconds: float
    one_of: int = 1

    @property
    def records(self) -> int:
        """The number of records of these topics."""
        return sum(each.records for each in self.topics)

    def rate(self, records: int) -> str:
        """A number of records as records per second."""
        return f"{records / self.seconds:,.2f}" if self.seconds > 0 else "-"


class Inline(msgspec.Struct, frozen=True):
    """What the broker learned while recording: patterns and epochs of each shard."""

    patterns: dict[int, list[str]]
    epochs: dict[int, int]


def count_topics(frame: DataFrame, topics_max: int = TOPICS_MAX) -> Census:
    """Count records and bytes by topic and shard; if there are too many topics, those in a sample by hash."""

    counted = (
        frame.groupBy("topic", "shard")
        .agg(
            F.count("*").alias("records"),
            F.sum(F.length("payload")).alias("payload_bytes"),
            F.min("store_timestamp").alias("first"),
            F.max("store_timestamp").alias("last"),
        )
        .persist()
    )
    try:
        everything = counted.agg(F.count("*"), F.min("first"), F.max("last")).head()
        assert everything is not None, "an aggregate always has one row"
        rows, first, last = everything
        one_of = -(-rows // topics_max) or 1
        chosen = counted.where(F.pmod(F.xxhash64("topic"), F.lit(one_of)) == 0) if one_of > 1 else counted
        topics = [
            TopicStats(row["topic"], row["records"], row["payload_bytes"] or 0, row["shard"]) for row in chosen.toLocalIterator()
        ]
    finally:
        counted.unpersist()
    return Census(topics, (last - first).total_seconds() if rows else 0.0, one_of)


def ask_broker(control: ControlClient) -> Inline:
    """The patterns and epochs of a node; raises the same errors as `ControlClient.get`."""
    patterns = {each.shard: each.patterns for each in control.get("/history/patterns", list[ShardPatterns])}
    epochs = {each.shard: each.epochs for each in control.get("/history/stats", HistoryStats).shards}
    return Inline(patterns, epochs)


@job_command("learn", pace=False)
@click.option(
    "--patterns",
    "patterns_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the proposed patterns to this file, one topic filter per line.",
)
@click.option(
    "--names-max",
    default=",".join(map(str, NAMES_MAX)),
    show_default=True,
    help="Number of names kept apart at the first level and at the other levels before a level counts as varying.",
)
@click.option(
    "--example",
    "examples",
    multiple=True,
    metavar="FILTER",
    help="Estimate the cost of this filter; may be repeated.  [default: the largest patterns and their busiest names]",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="BRAIDMQ_NODE__DATA_DIR",
    help="The node's data directory, to compare with the patterns it has learned.",
)
@click.option("--api", "api_url", default="", help="Connect to the node at http://HOST:PORT instead.")
@click.option(
    "--control-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The token for --api.  [default: ctl.token in the data directory]",
)
@click.option("--apply", "is_applied", is_flag=True, help="Send the patterns to the node as the layout of its next generation.")
def command(
    job: Job,
    patterns_file: Path | None,
    names_max: str,
    examples: tuple[str, ...],
    data_dir: Path | None,
    api_url: str,
    control_token_file: Path | None,
    is_applied: bool,
) -> None:
    """Learn from the history which topic levels vary, and propose patterns.

    \b
      braidmq pipeline learn --data-dir /var/lib/braidmq
      braidmq pipeline learn --data-dir /var/lib/braidmq --apply
    """
    try:
        room = [int(each) for each in names_max.split(",")]
    except ValueError:
        raise UsageError(f"--names-max takes numbers separated by commas, not {names_max!r}") from None
    if job.history.asking.columns is not None:
        raise UsageError("`learn` selects its own columns", "remove -o columns")
    control = _control(data_dir, api_url, control_token_file)
    if is_applied and control is None:
        raise UsageError("--apply needs a node", "give --data-dir or --api")
    inline = None if control is None else ask_broker(control)
    census = count_topics(job.batch(columns="topic,payload,store_timestamp,shard"))
    if not census.topics:
        raise UsageError("no records match", "give another --topic-filter, or an earlier --from")
    proposal = propose(census.topics, room)
    _show(census, proposal)
    patterns = [each.pattern for each in proposal.patterns]
    if inline is not None:
        costs = compare(
            examples or example_filters(proposal, census.topics), census.topics, inline.patterns, patterns, inline.epochs
        )
        _show_costs(costs, inline.patterns, patterns)
    if patterns_file is not None:
        Patterns(tuple(patterns)).write(patterns_file)
    if is_applied and control is not None:
        # A trie has at most DEPTH_MAX levels: deeper ones need no pattern.
        taught = [each for each in patterns if not each.endswith("#")][:_APPLIED_MAX]
        request = RelearnRequest(patterns=tuple(taught), thresholds=tuple(proposal.thresholds))
        done = msgspec.json.decode(control.send("POST", "/history/relearn", request), type=Relearned)
        click.echo(f"a new generation has begun: {done.reason}" if done.is_begun else f"nothing was changed: {done.reason}")


def _control(data_dir: Path | None, url: str, token_file: Path | None) -> ControlClient | None:
    if not url:
        return None if data_dir is None else ControlClient(socket_path=data_dir / SOCKET_NAME, timeout_s=_TIMEOUT_S)
    if not url.startswith(("http://", "https://")):
        raise UsageError("--api takes a URL such as http://127.0.0.1:18083")
    file = token_file or (None if data_dir is None else data_dir / TOKEN_NAME)
    try:
        token = "" if file is None else file.read_text().strip()
    except OSError as problem:
        raise UsageError(f"{file} cannot be read: {problem.strerror}", "the file must contain the node's control token") from None
    return ControlClient(url=url, token=token, timeout_s=_TIMEOUT_S)


def _show(census: Census, proposal: Proposal) -> None:
    busy = sorted(proposal.levels, key=lambda each: -each.records)[:_SHOWN]
    show_rows(
        "names below a prefix",
        ("prefix", "names", "entropy (bits)", "records", "varies"),
        [
            (
                each.prefix or "(all)",
                f"{each.names:,}",
                f"{each.entropy:.2f}",
                f"{each.records:,}",
                "yes" if each.varies else "no",
            )
            for each in busy
        ],
    )
    show_rows(
        "proposed patterns",
        ("pattern", "topics", "records", "records/s"),
        [
            (each.pattern, f"{each.topics:,}", f"{each.records:,}", census.rate(each.records))
            for each in proposal.patterns[:_SHOWN]
        ],
    )
    topics = len({each.topic for each in census.topics})
    share = f", 1 of {census.one_of} examined" if census.one_of > 1 else ""
    show_summary(
        "learn",
        [
            ("records", f"{census.records:,}"),
            ("topics", f"{topics:,}{share}"),
            ("patterns", f"{len(proposal.patterns):,}"),
            ("thresholds", ", ".join(map(str, proposal.thresholds))),
        ],
    )


def _show_costs(costs: Sequence[FilterCost], before: Mapping[int, Sequence[str]], after: Sequence[str]) -> None:
    show_rows(
        "keys examined per record found (estimated)",
        ("filter", "records", "as it is", "proposed"),
        [(each.topic_filter, f"{each.records:,}", f"{each.per_hit_before:.2f}", f"{each.per_hit_after:.2f}") for each in costs],
    )
    known = sum(map(len, before.values()))
    records = max(sum(each.records for each in costs), 1)
    keys_before, keys_after = sum(each.keys_before for each in costs), sum(each.keys_after for each in costs)
    show_summary(
        "compared with the patterns the node has learned",
        [
            ("patterns in all shards", f"{known:,}, proposed {len(after) * max(len(before), 1):,}"),
            ("keys for each record", f"{keys_before / records:.3f}, proposed {keys_after / records:.3f}"),
        ],
    )
