"""Progress within a batch. Spark reports progress only after a batch, and the first one may take an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AtWork(msgspec.Struct, frozen=True):
    """Progress of the current batch: rows read by finished tasks, finished tasks, and all tasks. Spark may add tasks later."""

    rows: int
    tasks_done: int
    tasks: int


class BatchAtWork:
    """Asks Spark about the running jobs of a query's batch. Used on the driver, from one thread."""

    def __init__(self, spark: SparkSession, run: str) -> None:
        context: Any = spark.sparkContext
        self._tracker = context.statusTracker()
        self._store = context._jsc.sc().statusStore()
        self._run = run  # Spark's group of all jobs of a run
        self._batch = -1
        self._jobs_before: set[int] = set()

    def look(self, batch: int) -> AtWork | None:
        """The progress of this batch; None if nothing runs for it yet, or Spark cannot tell. Ask for batches in order."""
        try:
            return self._look(batch)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
                raise
            return None  # for example, Spark has just dropped a stage; the next call will work

    def _look(self, batch: int) -> AtWork | None:
        jobs = set(self._tracker.getJobIdsForGroup(self._run))
        if batch != self._batch:
            # Jobs seen so far belong to earlier batches.
            self._jobs_before = jobs if self._batch >= 0 else set()
            self._batch = batch
        found = [self._job(each) for each in sorted(jobs - self._jobs_before)]
        if not found:
            return None
        # A batch used several times is read once in each job.
        rows = max(each.rows for each in found)
        return AtWork(rows, sum(each.tasks_done for each in found), sum(each.tasks for each in found))

    def _job(self, job: int) -> AtWork:
        info = self._tracker.getJobInfo(job)
        rows = done = tasks = 0
        for stage in info.stageIds if info is not None else ():
            state = self._tracker.getStageInfo(stage)
            if state is None:
                continue  # not started yet, or dropped by Spark
            done += state.numCompletedTasks
            tasks += state.numTasks
            rows += int(self._store.lastStageAttempt(stage).inputRecords())
        return AtWork(rows, done, tasks)
