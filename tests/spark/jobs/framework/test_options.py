"""`-o` of jobs: what it says holds for Spark and for the job alike, and goes before the flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from braidmq.spark.jobs.archive import learn_patterns
from braidmq.spark.jobs.framework.job import HistoryOptions, Job, Pace
from braidmq.spark.jobs.framework.run import Watch
from braidmq.spark.jobs.framework.session import SparkOptions
from braidmq.spark.jobs.learn import command as learn
from braidmq.spark.source.options import EARLIEST, Bound, ReadOptions, parse_read_options
from tests.spark.driving import at
from tests.support.certificates import Authority
from tests.support.fakes.history_service import FakeHistoryService


class FakeSpark:
    """Takes the options of a read, as Spark does: names in any case, each once."""

    def __init__(self) -> None:
        self.read = self.readStream = self
        self.given: dict[str, str] = {}

    def format(self, name: str) -> FakeSpark:
        assert name == "braidmq"
        return self

    def options(self, **options: str) -> FakeSpark:
        names = [each.lower() for each in options]
        assert len(set(names)) == len(names), f"one of {names} is given twice"
        self.given = {name.lower(): value for name, value in options.items()}
        return self

    def load(self) -> FakeSpark:
        return self


def options_of(kind: str, more: Mapping[str, str] = {}, pace: Pace | None = None) -> ReadOptions:
    """What Spark is given by a job with these options."""
    job = Job("archive", SparkOptions(), HistoryOptions(servers="h:1", filters=("#",), more=more), pace or Pace())
    made: Any = FakeSpark()
    job.__dict__["spark"] = made
    if kind == "stream":
        job.stream("2GiB")
    else:
        job.batch(endingOffsets="latest", columns="topic")
    return parse_read_options(made.given)


@pytest.mark.parametrize("name", ["maxBytesPerTrigger", "maxbytespertrigger", "braidmq.maxBytesPerTrigger"])
def test_an_option_overrides_the_default_of_the_job_in_any_spelling(name: str) -> None:
    assert options_of("stream").bytes_max == 2 << 30
    assert options_of("stream", {name: "1MiB"}).bytes_max == 1 << 20
    assert options_of("stream", {name: "1MiB"}, Pace(batch_bytes="3MiB", batch_rows=7)).rows_max == 7


def test_an_option_goes_before_a_flag() -> None:
    found = options_of("batch", {"TOPICFILTER": "a/#", "Columns": "topic,qos", "servers": "other:2"})

    assert (found.filters, found.columns, found.servers) == (["a/#"], ["topic", "qos"], ["grpc://other:2"])


def test_an_option_for_a_time_or_an_offset_overrides_the_flag_of_the_job() -> None:
    assert options_of("batch").start == EARLIEST
    assert options_of("batch", {"startingTimestamp": "-1h"}).start == Bound(moment="-1h")
    assert options_of("batch", {"endingtimestamp": "-1h"}).end == Bound(moment="-1h")


def test_learn_refuses_columns_in_words() -> None:
    told = CliRunner().invoke(learn.command, ["-o", "columns=topic"], catch_exceptions=False)

    assert told.exit_code == 1
    assert "remove -o columns" in told.output


def test_the_jobs_own_requests_use_the_connection_of_the_options(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, own = authority.server("history.example"), authority.client()
    secured: dict[str, Any] = {
        "tls_certificates": [(Path(pair.cert_file).read_bytes(), Path(pair.key_file).read_bytes())],
        "verify_client": True,
        "root_certificates": Path(authority.cert_file).read_bytes(),
    }
    more = {"tls.certFile": own.cert_file, "tls.keyFile": own.key_file, "TLS.SERVERNAME": "history.example"}
    with FakeHistoryService(**secured) as service:
        service.add("a/1")
        history = HistoryOptions(servers=service.address, filters=("a/#",), ca_file=authority.cert_file, more=more)

        patterns = learn_patterns(history, 10)

        assert patterns.filters == ("a/1",)


def test_a_job_waits_for_an_answer_as_long_as_the_options_say(history: FakeHistoryService) -> None:
    usual = HistoryOptions(servers=history.address, filters=("#",))
    patient = HistoryOptions(servers=history.address, filters=("#",), more={"timeout": "1m", "retryTimeout": "9s"})

    assert (usual.asking.call_s, usual.asking.retry_s) == (5.0, 2.0)
    assert (patient.asking.call_s, patient.asking.retry_s) == (60.0, 9.0)


def test_lag_and_the_last_position_are_of_the_filter_and_the_reader_in_the_options(history: FakeHistoryService) -> None:
    history.add_many("a", 3, shard=0)
    history.add_many("b", 2, shard=1)
    more = {"topicFilter": '["a"]', "readerName": "mine"}
    watch = Watch(HistoryOptions(servers=history.address, filters=("#",), reader_name="archive", more=more))

    backlog = watch.backlog({"0": at(1), "1": 1})
    watch.note({"0": at(1)})
    watch.close()

    assert backlog is not None
    assert backlog.rows == 2
    assert history.readers == {"mine": {"0": at(1)}}
    assert history.reader_names == {"mine"}
