"""Which query may write to a table: its own, so that nothing is read twice. Decided before Spark starts where possible.

A query is its checkpoint. If that is lost, or another one is given, Spark begins a new query at the beginning of the history, and
every row would be in the table twice. So a new query writes to a new table only, unless it is told otherwise:

- `adopt`: it begins where the queries before it ended, by the positions that the table records, and replaces them.
- `append`: it adds its rows to those of the others, as is right if they read other topics.

A checkpoint that has finished more batches than the table has is refused as well: the table was removed, restored or changed for
another one, and would lack what the checkpoint counts as done.
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
    """What the commits of a run record about it, and the queries beside which it may write."""

    job: str
    checkpoint: str
    filters: tuple[str, ...]
    known: frozenset[str] | None = frozenset()  # None: any
    adopts: tuple[str, ...] = ()
    start: Offset | None = None  # where a query that adopts begins
    replaced: tuple[str, ...] = ()  # the checkpoints of the queries that it adopts from

    def batch(self, query: str, number: int, end: dict[str, Any] | None) -> BatchName:
        """The name of a batch that ends there, with its record."""
        record = QueryRecord(query, number, self.job, self.checkpoint, self.filters, end, self.adopts)
        return BatchName(query, number, record, self.known)


def own_tables(job: Job, checkpoint_path: str, tables: Sequence[OutputTable], *, cannot_adopt: str = "") -> Ownership:
    """Check that the job may write to all of its tables, of which the first is the main one; raises UsageError if it may not.

    A job that adopts is set to begin where the table ends. `cannot_adopt` says why a job cannot do that.
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
                    pass  # it is not at work, and when it starts again it is told that it was replaced
        job.begin_at(found.start)
    for each in tables:
        each.finish_commits()
    return found


def decide(
    wanted: Ownership, checkpoint: Checkpoint, tables: Sequence[OutputTable], choice: OtherQueries, cannot_adopt: str = ""
) -> Ownership:
    """What `own_tables` does, without a job: the queries beside which the tables may be written, and where to begin."""
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
    """Whether a table lacks batches. One beside the main table may be new: that of quarantine may have been moved."""
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
    """The end of the one query that has the filters of the new one, and the queries that the new one then replaces."""
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
        # A record says where its query ended, not where it began: the table may lack what is between them.
        names = " and ".join(each.words() for each in alike)
        hint = "continue with the --checkpoint of one of them, use a new table, or give --append-anyway and --from"
        raise UsageError(
            f"the table {path} cannot be adopted: several queries with these topic filters have written to it: {names}", hint
        )
    return parse_offset(last.offset), {last.query} | replaced


def _start_of(adopted: dict[str, Offset], checkpoint: Checkpoint) -> Offset | None:
    """Where the query begins; None if it has begun there already, and nothing of its first batch is in the table yet."""
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
    raise UsageError(f"the checkpoint {checkpoint.path} cannot adopt a table: it is in use already", "use a new --checkpoint")


@contextlib.contextmanager
def alone_with(checkpoint: str) -> Iterator[None]:
    """Keep other jobs from a checkpoint of this machine; raises UsageError if one is at work with it."""
    root = local_path(checkpoint)
    assert root is not None, "there are no locks elsewhere"
    root.mkdir(parents=True, exist_ok=True)
    with open(root / _LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, stop it, or use another --checkpoint"
            raise UsageError(f"another job uses the checkpoint {checkpoint}", hint) from None
        yield
