"""Runs the job that republishes history as an application: `python -m braidmq.spark.jobs.replay`."""

from __future__ import annotations

from braidmq.spark.jobs.replay.command import command

if __name__ == "__main__":
    command()
