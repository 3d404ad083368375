"""Runs the job that learns topic patterns as an application: `python -m braidmq.spark.jobs.learn`."""

from __future__ import annotations

from braidmq.spark.jobs.learn.command import command

if __name__ == "__main__":
    command()
