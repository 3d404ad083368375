"""``braidmq backup`` and ``braidmq restore``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.base.errors import Unavailable, UsageError
from braidmq.control.history import Copying, End, Made
from braidmq.storage.upkeep.backup import make_backup
from tests.cli.in_process import run
from tests.storage.message_log import Stage
from tests.support.api_node import ApiNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ApiNode]:
    with ApiNode(tmp_path) as node:
        yield node


def test_the_node_is_asked_for_a_backup_in_an_absolute_path(
    node: ApiNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Made(path="/b", log_id="00", files=3, total_bytes=2048)
    node.operations.history.lines = [Copying(done_bytes=1, total_bytes=2048), made, End()]
    monkeypatch.chdir(tmp_path)

    exit_code = run("backup", "sub/b1", "--data-dir", str(tmp_path))

    assert exit_code == 0
    assert node.operations.history.backup_paths == [str(tmp_path / "sub" / "b1")]
    assert capsys.readouterr().out == "backed up 3 files, 2.0 KiB, to sub/b1\n"


def test_a_backup_of_one_of_several_cores_says_what_it_lacks(
    node: ApiNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Made(path="/b", log_id="00", files=3, total_bytes=2048, shards=[0, 2], other_cores=["core2", "core3"])
    node.operations.history.lines = [made, End()]

    assert run("backup", "/b", "--data-dir", str(tmp_path)) == 0

    said = "it covers the shards 0, 2; the others are led by core2, core3: back up these cores and etcd as well"
    assert capsys.readouterr().out.splitlines()[1] == said


@pytest.mark.parametrize(
    ("refusal", "lines", "words"),
    [
        (UsageError("/b is there already", "name another"), [], "/b is there already: name another"),
        (None, [Unavailable("no space left")], "no space left"),
        (None, [Copying(done_bytes=1, total_bytes=2)], "ended its answer early"),
    ],
    ids=["refused", "failed", "cut off"],
)
def test_a_failed_backup_is_reported_in_one_line(
    node: ApiNode,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refusal: UsageError | None,
    lines: list[Copying | Unavailable],
    words: str,
) -> None:
    node.operations.history.refusal, node.operations.history.lines = refusal, list(lines)

    assert run("backup", "/b", "--data-dir", str(tmp_path)) == 1

    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1


def test_restore_makes_a_data_directory_or_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    with Stage(tmp_path / "data") as stage:
        stage.publish("c", "t", b"kept")
        make_backup(stage.log.checkpoint, "00", tmp_path / "data", tmp_path / "backup", lambda *_: None)

    assert run("restore", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "new")) == 0
    assert "start the node" in capsys.readouterr().out
    assert run("restore", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "new")) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run("restore", str(tmp_path / "data"), "--data-dir", str(tmp_path / "other")) == 2
    assert "is not a backup" in capsys.readouterr().err

    with Stage(tmp_path / "new") as stage:
        assert stage.payloads("#") == [b"kept"]
