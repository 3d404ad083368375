"""Decides which query may write to a table, so that no rows are duplicated. Checked before Spark starts where possible.

A query is identified by its checkpoint. If the checkpoint is lost, or another one is given, Spark starts a new query at the
beginning of the history, and the table would have every row twice. So a new query writes only to a new table, unless told
otherwise:

- `adopt`: it begins where the query before it ended, by the positions that the table records, and replaces it.
- `append`: it adds its rows to those of the others, which is right if they read other topics.

A checkpoint with more finished batches than its table is rejected as well: the table was removed, restored or replaced, and would
lack batches that count as done.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from braidmq.base.errors import UsageError
from braidmq.spark.jobs.framework.checkpoint import Checkpoint, local_checkpoint, open_checkpoint
from braidmq.spark.jobs.framework.job import Job, OtherQueries
from braidmq.spark.jobs.tables.tables import BatchName, OutputTable, QueryRecord, check_folder, local_path, taken_over
from braidmq.spark.source.offsets import Offset, parse_offset

_LOCK: Final = "braidmq.lock"
_ANYWAY: Final = "use --append-anyway to add its rows anyway"


class Ownership(msgspec.Struct, frozen=True):
    """What the commits of a run record about it, and the other queries whose tables it may write to."""

    job: str
    checkpoint: str
    filters: tuple[str, ...]
    known: frozenset[str] | None = frozenset()  # None: any
    adopts: tuple[str, ...] = ()
    start: Offset | None = None  # where a query that adopts begins
    replaced: tuple[str, ...] = ()  # the checkpoints of the queries that it adopts from

    def batch(self, query: str, number: int, end: dict[str, Any] | None) -> BatchName:
        """The name of a batch that ends at `end`, with its record."""
        record = QueryRecord(query, number, self.job, self.checkpoint, self.filters, end, self.adopts)
        return BatchName(query, number, record, self.known)


def own_tables(job: Job, checkpoint_path: str, tables: Sequence[OutputTable], *, cannot_adopt: str = "") -> Ownership:
    """Check that the job may write to all of its tables, the first of which is the main one; raises UsageError otherwise.

    A job that adopts then begins where the table ends. `cannot_adopt` is the reason why a job cannot adopt.
    """
    for each in tables:
        each.check_place()
    root = local_path(checkpoint_path)
    if root is not None:
        check_folder(root, "a checkpoint")
    checkpoint = local_checkpoint(checkpoint_path) or open_checkpoint(job.spark, checkpoint_path)
    wanted = Ownership(job.name, checkpoint_path, tuple(job.history.asking.filters))
    found = decide(wanted, checkpoint, tables, job.pace.other_queries, cannot_adopt)
    if root is not None:
        job.until_end.enter_context(alone_with(checkpoint_path))
    if found.start is not None:
        for former in found.replaced:
            folder = local_path(former)
            if former != checkpoint_path and folder is not None and folder.is_dir():
                with alone_with(former):
                    pass  # it is not running; if it starts again, it is rejected as replaced
        job.begin_at(found.start)
    for each in tables:
        each.finish_commits()
    return found


def decide(
    wanted: Ownership, checkpoint: Checkpoint, tables: Sequence[OutputTable], choice: OtherQueries, cannot_adopt: str = ""
) -> Ownership:
    """The decision of `own_tables`, without a job: the queries accepted in the tables, and where to begin."""
    query, finished = checkpoint.query(), checkpoint.finished()
    known: set[str] = set()
    adopted: dict[str, Offset] = {}
    adopts: set[str] = set()
    replaced: set[str] = set()
    for table in tables:
        own = None if query is None else table.last_batch(query)
        records = table.records("" if query is None or own is None else query)
        others = [each for each in records if each.query != query]
        known.update(each.query for each in others)
        adopts.update(former for each in records if each.query == query for former in each.adopts)
        if choice == "append":
            continue
        for each in others:
            if query is not None and query in each.adopts:
                raise taken_over(table.path, each)
        if own is None and others and choice == "adopt":
            if cannot_adopt:
                raise UsageError(f"the table {table.path} cannot be adopted: {cannot_adopt}", f"use a new table, or {_ANYWAY}")
            adopted[table.path], former = _positions_in(table.path, others, wanted.filters)
            adopts.update(former)
            replaced.update(each.checkpoint for each in others if each.query in former)
        elif own is None and others:
            raise _refusal(table.path, others, checkpoint, can_adopt=not cannot_adopt)
        elif finished is not None and _is_behind(own, finished, is_main=table is tables[0]):
            has = "none of them" if own is None else f"those up to {own}"
            hint = "restore the table, or begin a new --checkpoint (with --adopt if the table has rows); or give --append-anyway"
            raise UsageError(f"the checkpoint {checkpoint.path} has batches up to {finished}, but {table.path} has {has}", hint)
    start = _start_of(adopted, checkpoint) if adopted else None
    return msgspec.structs.replace(
        wanted,
        known=None if choice == "append" else frozenset(known),
        adopts=tuple(sorted(adopts)),
        start=start,
        replaced=tuple(sorted(replaced)),
    )


def _is_behind(own: int | None, finished: int, *, is_main: bool) -> bool:
    """Whether a table lacks batches. Tables other than the main one may be new, for example a moved quarantine table."""
    return is_main if own is None else own < finished


def _refusal(path: str, others: Sequence[QueryRecord], checkpoint: Checkpoint, *, can_adopt: bool) -> UsageError:
    last = max(others, key=lambda each: (bool(each.checkpoint), each.batch))
    is_lost = bool(last.checkpoint) and last.checkpoint == checkpoint.path
    ways = ["--adopt continues where the table ends" if can_adopt else "use a new table"]
    if is_lost:
        ways.insert(0, "its checkpoint was removed or replaced: restore it")
    elif last.checkpoint:
        ways.insert(0, f"continue with its --checkpoint {last.checkpoint}")
    ways.append("--append-anyway adds the rows of this query to the others")
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    detail = f"the table {path} was written by {last.words()}{more}, so a new query would write the same rows again"
    return UsageError(detail, "; ".join(ways))


def _positions_in(path: str, others: Sequence[QueryRecord], filters: Sequence[str]) -> tuple[Offset, set[str]]:
    """The end of the only query with the same filters, and the queries that the new one replaces."""
    replaced = {former for each in others for former in each.adopts}
    current = [each for each in others if each.query not in replaced]
    unknown = next((each for each in current if each.offset is None), None)
    if unknown is not None:
        hint = "use a new table, or give --append-anyway and --from"
        raise UsageError(f"the table {path} cannot be adopted: positions are not recorded by {unknown.words()}", hint)
    alike = [each for each in current if set(each.filters) == set(filters)]
    if not alike:
        hint = f"give its topic filters, or use a new table; {_ANYWAY}"
        raise UsageError(f"the table {path} cannot be adopted: other topics were read by {current[-1].words()}", hint)
    last, *more = alike
    if more:
        # Records say where a query ended, not where it began: the table may lack records between the queries.
        names = " and ".join(each.words() for each in alike)
        hint = "continue with the --checkpoint of one of them, use a new table, or give --append-anyway and --from"
        raise UsageError(
            f"the table {path} cannot be adopted: several queries with these topic filters have written to it: {names}", hint
        )
    return parse_offset(last.offset), {last.query} | replaced


def _start_of(adopted: dict[str, Offset], checkpoint: Checkpoint) -> Offset | None:
    """Where the query begins; None if it has already begun there, with nothing of its first batch in the table yet."""
    (path, start), *more = adopted.items()
    for other, offset in more:
        if not offset.is_at(start):
            places = f"{start.to_json()['shards']} and {offset.to_json()['shards']}"
            hint = f"a batch is in one of them only: use new tables; {_ANYWAY}"
            raise UsageError(f"the tables {path} and {other} cannot be adopted: they end at different positions, {places}", hint)
    if checkpoint.planned() is None:
        return start
    began = checkpoint.begin() if checkpoint.finished() is None else None
    if began is not None and began.is_at(start):
        return None
    raise UsageError(f"the checkpoint {checkpoint.path} cannot adopt a table: it is already in use", "use a new --checkpoint")


@contextlib.contextmanager
def alone_with(checkpoint: str) -> Iterator[None]:
    """Lock a local checkpoint; raises UsageError if another job uses it."""
    root = local_path(checkpoint)
    assert root is not None, "only local checkpoints are locked"
    root.mkdir(parents=True, exist_ok=True)
    with open(root / _LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, stop it, or use another --checkpoint"
            raise UsageError(f"another job uses the checkpoint {checkpoint}", hint) from None
        yield
