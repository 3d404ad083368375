"""Checks before Java starts, which takes seconds, so that errors in options are reported at once."""

from __future__ import annotations

import click

from braidmq.base.errors import Unavailable
from braidmq.flight import wire
from braidmq.spark.jobs.framework.checkpoint import local_checkpoint
from braidmq.spark.jobs.framework.job import Job
from braidmq.spark.jobs.framework.session import check_java
from braidmq.spark.source.offsets import check_log, check_shards


def check_service(job: Job, checkpoint_path: str) -> None:
    """Ask the history service whether the job may read its topics, and whether its positions belong to this log.

    Raises UsageError if not. A service that does not answer is not an error: Spark waits for it longer than this check.
    """
    check_java()  # without Java the job cannot run, whether or not the service answers
    asking = job.history.asking
    checkpoint = local_checkpoint(checkpoint_path)
    try:
        with job.history.client() as client:
            shards = client.shards()
            client.plan(wire.Plan(asking.filters, start=wire.LATEST, end=wire.LATEST, on_loss="skip"))
    except Unavailable as problem:
        click.echo(f"{job.name}: {problem.detail}; the job starts and waits for it", err=True)
        return
    if checkpoint is not None and checkpoint.planned() is not None:
        begin = checkpoint.begin()
        if begin is not None:
            check_log(begin, shards.log)
    elif asking.start is not None and asking.start.offset is not None:
        check_log(asking.start.offset, shards.log)
        check_shards(asking.start.offset, shards)
