"""Mistakes that a job tells before Java starts."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from braidmq.spark.jobs import archive, decode, rollup
from braidmq.spark.jobs.framework import job
from braidmq.spark.jobs.learn import command as learn
from braidmq.spark.jobs.replay import command as replay
from tests.support.fakes.history_service import FakeHistoryService
from tests.support.ports import closed_address

WRITERS = [archive.command, decode.command, rollup.command]


class JavaStarted(Exception):
    """The job got as far as to start Spark."""


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise JavaStarted

    monkeypatch.setattr(job, "open_session", start)


def told_by(command: click.Command, *arguments: str) -> str:
    """What a command that fails says; raises JavaStarted if it comes that far."""
    result = CliRunner().invoke(command, list(arguments))
    if isinstance(result.exception, JavaStarted):
        raise result.exception
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    return result.output


@pytest.mark.row("K16")
@pytest.mark.parametrize("command", [*WRITERS, learn.command, replay.command], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["-t", "a/#/b"], "--topic-filter: 'a/#/b' is not a topic filter"),
        (["-t", "$share/g/a"], "is for MQTT subscriptions only"),
        (["--from", "yesterday"], "--from: 'yesterday' is not a valid start"),
        (["--from", '{"0": "x"}'], "--from: this is not an offset"),
    ],
    ids=lambda each: each[1] if isinstance(each, list) else "",
)
def test_topic_filters_and_starts_that_cannot_be(command: click.Command, option: list[str], words: str, tmp_path: Path) -> None:
    place = {"learn": [], "replay": ["127.0.0.1:1"]}.get(command.name or "", [str(tmp_path / "out")])

    assert words in told_by(command, *place, *option)
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_limit_is_rejected(tmp_path: Path) -> None:
    place = str(tmp_path / "out")

    assert "--batch-bytes: " in told_by(archive.command, place, "--batch-bytes", "lots")
    assert "maxBytesPerTrigger: " in told_by(archive.command, place, "-o", "maxBytesPerTrigger=lots")


@pytest.mark.row("K16")
@pytest.mark.parametrize("command", WRITERS, ids=lambda each: each.name)
def test_a_table_that_cannot_be_there(command: click.Command, history: FakeHistoryService, tmp_path: Path) -> None:
    history.add("a")
    (tmp_path / "file").write_text("")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    servers = ["--servers", history.address]

    assert "is a file" in told_by(command, str(tmp_path / "file"), *servers)
    assert "there is a Delta table" in told_by(command, str(tmp_path / "delta"), *servers)
    assert "a checkpoint cannot be at" in told_by(
        command, str(tmp_path / "new"), "--checkpoint", str(tmp_path / "file" / "x"), *servers
    )
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", WRITERS, ids=lambda each: each.name)
def test_a_service_that_refuses_the_job_or_has_another_log(
    command: click.Command, history: FakeHistoryService, tmp_path: Path
) -> None:
    history.add("a")
    history.hidden = {"secret/#"}
    words = [str(tmp_path / "out"), "--servers", history.address]
    offset = '{"version": 1, "log": "beef", "shards": {"0": 1}}'

    assert "secret/# may not be subscribed to" in told_by(command, *words, "-t", "secret/#")
    assert "the offset belongs to log beef, but the servers have log 00ff" in told_by(command, *words, "--from", offset)
    assert "the log has no shard 7" in told_by(command, *words, "--from", '{"7": 1}')
    history.users = {"ann": "right"}
    assert "denied access" in told_by(command, *words)


def test_a_checkpoint_of_another_log(history: FakeHistoryService, tmp_path: Path) -> None:
    checkpoint = tmp_path / "out.checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id": "q"}')
    offset = {"version": 2, "log": "beef", "shards": {"0": 9}, "began": {"shards": {"0": 1}}}
    (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offset)}")

    told = told_by(archive.command, str(tmp_path / "out"), "--servers", history.address)

    assert "the offset belongs to log beef, but the servers have log 00ff" in told


def test_a_service_that_is_away_is_left_to_spark_which_waits_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(tmp_path / "out"), "--servers", closed_address(), "-o", "retryTimeout=100ms"]

    with pytest.raises(JavaStarted):
        archive.command.main(words, standalone_mode=False)

    assert "is available" in (said := capsys.readouterr().err)
    assert "the job starts and waits for it" in said
