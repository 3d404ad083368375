"""The framework of all jobs: shared options (what to read, how fast, on which Spark), running and failing.

A job is a click command, so that `braidmq pipeline archive`, `python -m braidmq.spark.jobs.archive` and `spark-submit` take the
same options. The job's function receives a `Job` built from the shared options.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
import msgspec
from click.exceptions import Exit

from braidmq.base.errors import BraidError, ConfigError, UsageError
from braidmq.flight.client import HistoryClient
from braidmq.spark.jobs.framework.failures import AGAIN, explain
from braidmq.spark.jobs.framework.session import SparkOptions, open_session
from braidmq.spark.jobs.framework.stop import Interrupted, StopRequest, ending_at_once
from braidmq.spark.option_table import PREFIX
from braidmq.spark.source.offsets import Offset
from braidmq.spark.source.options import ReadOptions, parse_read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HISTORY: Final = (
    click.option(
        "--servers", default="localhost:8815", show_default=True, help="History services: host:port, separated by commas."
    ),
    click.option(
        "-t",
        "--topic-filter",
        "filters",
        multiple=True,
        default=("#",),
        show_default=True,
        help="Topic filter to read; may be repeated.",
    ),
    click.option(
        "--from",
        "start",
        default="earliest",
        show_default=True,
        help="Start here: earliest, latest, -24h, 2024-03-01T12:00:00Z, or an offset. An existing checkpoint takes precedence.",
    ),
    click.option("--reader-name", help="Reader name: the broker shows its lag, and retention waits for its position."),
    click.option("--user", help="User to read as; the access rules for subscriptions apply."),
    click.option(
        "--password-file", type=click.Path(dir_okay=False, path_type=Path), help="File with the password.  [or BRAIDMQ_PASSWORD]"
    ),
    click.option(
        "--token-file", type=click.Path(dir_okay=False, path_type=Path), help="File with a token instead.  [or BRAIDMQ_TOKEN]"
    ),
    click.option("--ca-file", help="File of trusted certificate authorities; enables TLS."),
    click.option("-o", "--option", "more", multiple=True, metavar="NAME=VALUE", help='Any other option of format("braidmq").'),
)
# The flags that correspond to options of `format("braidmq")`.
_FLAGS: Final = {
    "servers": "--servers",
    "topicFilter": "--topic-filter",
    "startingOffsets": "--from",
    "startingTimestamp": "--from",
    "maxBytesPerTrigger": "--batch-bytes",
}
# A job does not wait long for the lag that it displays, unless configured otherwise.
_HASTE: Final = {"timeout": "5s", "retryTimeout": "2s"}
# Two options with the same meaning.
_SAME: Final = {"startingtimestamp": "startingoffsets", "endingtimestamp": "endingoffsets"}
BATCH_BYTES: Final = "512MiB"
_PACE: Final = (
    click.option(
        "--available-now/--follow",
        "available_now",
        default=True,
        show_default=True,
        help="Stop at the current end of the history, or continue until Ctrl-C.",
    ),
    click.option(
        "--checkpoint", help="Directory for the progress of the job; `replay --follow` requires it.  [default: OUTPUT.checkpoint]"
    ),
    click.option("--trigger", default="10 seconds", show_default=True, help="With --follow: interval between batches."),
    click.option("--batch-rows", type=click.IntRange(1), help="Maximum rows per batch."),
    click.option(
        "--batch-bytes", help=f"Maximum bytes of records per batch.  [default: {BATCH_BYTES}; archive to Parquet: 2GiB]"
    ),
)
_TABLE: Final = (
    click.option(
        "--adopt",
        is_flag=True,
        help="Continue where the table of another query ends, from its recorded positions; replaces that query.",
    ),
    click.option(
        "--append-anyway",
        is_flag=True,
        help="Append to the table of another query, starting at --from; records read by both appear twice.",
    ),
)
_SPARK: Final = (
    click.option("--master", default="", help="Spark's master.  [default: local[*], or that of spark-submit]"),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated."),
)


class HistoryOptions(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What to read and as which user: from flags, and from `more`, which takes precedence."""

    servers: str
    filters: tuple[str, ...]
    start: str = "earliest"
    reader_name: str = ""
    user: str = ""
    password: str = ""
    token: str = ""
    ca_file: str = ""
    more: Mapping[str, str] = {}

    def reader_options(self, usual: Mapping[str, str] = {}) -> dict[str, str]:
        """Options of `format("braidmq")`, with the job's defaults (`usual`) unless `more` overrides them."""
        flags = {
            **bound("starting", self.start),
            "servers": self.servers,
            "topicFilter": msgspec.json.encode(self.filters).decode(),
            "readerName": self.reader_name,
            "user": self.user,
            "password": self.password,
            "token": self.token,
            "tls.caFile": self.ca_file,
        }
        # Spark ignores the case of names, and we ignore our prefix: each option must be given once.
        given = [*flags.items(), *usual.items(), *self.more.items()]
        found = {_subject(name): (name, value) for name, value in given}
        return {name: value for name, value in found.values() if value}

    def option_for(self, *subjects: str) -> str | None:
        """The option in `more` that concerns one of these subjects, if any; subjects are written like options."""
        wanted = {_subject(each) for each in subjects}
        return next((name for name in self.more if _subject(name) in wanted), None)

    @cached_property
    def asking(self) -> ReadOptions:
        """The options for the job's own requests; raises ConfigError for invalid ones."""
        return parse_read_options(self.reader_options(_HASTE))

    def client(self, *, is_patient: bool = False) -> HistoryClient:
        """A client of the same history, for requests outside Spark; a patient one waits as long as Spark does."""
        asking = parse_read_options(self.reader_options()) if is_patient else self.asking
        return HistoryClient(asking.servers, asking.access, call_s=asking.call_s, retry_s=asking.retry_s)


def _subject(option: str) -> str:
    """The subject of an option of `format("braidmq")`."""
    bare = option.lower().removeprefix(PREFIX)
    return _SAME.get(bare, bare)


def bound(which: Literal["starting", "ending"], text: str) -> dict[str, str]:
    """The option of `format("braidmq")` for `--from` or `--to`: a time, or an offset."""
    is_time = text not in ("earliest", "latest") and not text.startswith("{")
    return {f"{which}{'Timestamp' if is_time else 'Offsets'}": text}


# What a query does if another query has written to its table.
OtherQueries = Literal["refuse", "adopt", "append"]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How a streaming query runs."""

    available_now: bool = True
    checkpoint: str = ""
    trigger: str = "10 seconds"
    batch_rows: int | None = None
    batch_bytes: str = ""
    other_queries: OtherQueries = "refuse"

    def limits(self, batch_bytes: str) -> dict[str, str]:
        """Options of `format("braidmq")` that limit a batch; `batch_bytes` is the default limit."""
        rows = {"maxRowsPerTrigger": str(self.batch_rows)} if self.batch_rows else {}
        return {"maxBytesPerTrigger": self.batch_bytes or batch_bytes, **rows}


class Job:
    """One run of a job, on the driver."""

    def __init__(self, name: str, spark_options: SparkOptions, history: HistoryOptions | None, pace: Pace | None) -> None:
        self.name = name
        self._spark_options = spark_options
        self._history = history
        self._pace = pace
        self.stop = StopRequest()
        self.how_to_go_on = AGAIN
        self.until_end = ExitStack()  # resources held while the job runs

    @property
    def history(self) -> HistoryOptions:
        """What history to read."""
        assert self._history is not None, "this job takes no history options"
        return self._history

    @property
    def pace(self) -> Pace:
        """How the query runs."""
        assert self._pace is not None, "this job takes no stream options"
        return self._pace

    def check_options(self) -> None:
        """Raise ConfigError for invalid topic filters, starts or limits. Needs neither Spark nor a service."""
        if self._history is not None:
            usual = {} if self._pace is None else self._pace.limits(BATCH_BYTES)
            try:
                parse_read_options(self._history.reader_options(usual))
            except ConfigError as problem:
                flag = _FLAGS.get(problem.key)
                if flag is None or self._history.option_for(problem.key):
                    raise
                raise ConfigError(flag, problem.detail, problem.hint) from None

    def begin_at(self, offset: Offset) -> None:
        """Begin at this offset, overriding the options."""
        more = {name: value for name, value in self.history.more.items() if _subject(name) != _subject("startingOffsets")}
        start = msgspec.json.encode(offset.to_json()).decode()
        self._history = msgspec.structs.replace(self.history, start=start, more=more)

    @cached_property
    def spark(self) -> SparkSession:
        """The Spark session; the first use starts it, which takes seconds."""
        return open_session(self.name, self._spark_options)

    def stream(self, batch_bytes: str = BATCH_BYTES) -> DataFrame:
        """History as a streaming DataFrame."""
        options = self.history.reader_options(self.pace.limits(batch_bytes))
        return self.spark.readStream.format("braidmq").options(**options).load()

    def batch(self, **usual: str) -> DataFrame:
        """History up to now as a DataFrame."""
        return self.spark.read.format("braidmq").options(**self.history.reader_options(usual)).load()


def job_command(
    name: str, *, history: bool = True, pace: bool = True, table: bool = False, reader_name: str = ""
) -> Callable[[Callable[..., None]], click.Command]:
    """A command whose function is called with a `Job` and its own options. `table`: the job writes to tables."""
    groups = [*(_HISTORY if history else ()), *(_PACE if pace else ()), *(_TABLE if table else ()), *_SPARK]

    def decorate(function: Callable[..., None]) -> click.Command:
        def run(**given: Any) -> None:
            job = Job(
                name,
                SparkOptions(given.pop("master"), pairs("--conf", given.pop("conf"))),
                _take_history(given, reader_name) if history else None,
                _take_pace(given) if pace else None,
            )
            with reported(job), job.until_end:
                job.check_options()
                function(job, **given)

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        made: Callable[..., None] = run
        for option in reversed(groups):
            made = option(made)
        return click.command(name)(made)

    return decorate


def _take_history(given: dict[str, Any], reader_name: str) -> HistoryOptions:
    return HistoryOptions(
        servers=given.pop("servers"),
        filters=given.pop("filters"),
        start=given.pop("start"),
        reader_name=given.pop("reader_name") or reader_name,
        user=given.pop("user") or "",
        password=secret_of(given.pop("password_file")) or os.environ.get("BRAIDMQ_PASSWORD", ""),
        token=secret_of(given.pop("token_file")) or os.environ.get("BRAIDMQ_TOKEN", ""),
        ca_file=given.pop("ca_file") or "",
        more=pairs("--option", given.pop("more")),
    )


def _take_pace(given: dict[str, Any]) -> Pace:
    return Pace(
        available_now=given.pop("available_now"),
        checkpoint=given.pop("checkpoint") or "",
        trigger=given.pop("trigger"),
        batch_rows=given.pop("batch_rows"),
        batch_bytes=given.pop("batch_bytes") or "",
        other_queries=_take_other_queries(given.pop("adopt", False), given.pop("append_anyway", False)),
    )


def _take_other_queries(is_adopted: bool, is_appended: bool) -> OtherQueries:
    if is_adopted and is_appended:
        raise click.UsageError("give --adopt or --append-anyway, not both")
    return "adopt" if is_adopted else "append" if is_appended else "refuse"


def secret_of(file: Path | None) -> str:
    """The secret in a file; empty without a file. Raises UsageError if it cannot be read."""
    if file is None:
        return ""
    try:
        return file.read_text().strip()
    except OSError as problem:
        raise UsageError(f"{file} cannot be read: {problem.strerror}", "the file must contain only the secret") from None


def pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """Parse `NAME=VALUE` pairs; raises UsageError for anything else."""
    for each in given:
        if "=" not in each:
            raise UsageError(f"{option} takes NAME=VALUE, not {each!r}")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


@contextmanager
def reported(job: Job) -> Iterator[None]:
    """End the command with one sentence on any failure or signal."""
    try:
        with ending_at_once():
            yield
    except (click.ClickException, click.Abort):
        raise
    except KeyboardInterrupt as end:
        click.echo(f"{job.name}: interrupted; {job.how_to_go_on}", err=True)
        # Spark installs its own handler for Ctrl-C.
        raise Exit(128 + (end.number if isinstance(end, Interrupted) else signal.SIGINT)) from None
    except BraidError as problem:
        told = str(problem) if job.how_to_go_on == AGAIN else f"{problem}; {job.how_to_go_on}"
        raise click.ClickException(told) from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise click.ClickException(str(explain(error, job.how_to_go_on))) from None
    if job.stop.is_granted:
        click.echo(f"{job.name}: stopped; {job.how_to_go_on}", err=True)
        if job.pace.available_now:
            raise Exit(job.stop.exit_code)
