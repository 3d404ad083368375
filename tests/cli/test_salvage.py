"""``braidmq salvage`` on a log whose end is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from braidmq.base.errors import Corruption
from tests.cli.in_process import run
from tests.storage.message_log import Stage

COUNT = 200


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """The data directory of a node that was killed after many messages, with a bit flipped in the middle of them."""
    (tmp_path / "live").mkdir()
    with Stage(tmp_path / "live") as stage:
        for number in range(COUNT):
            stage.publish("c", "t", b"%04d" % number * 25)
        shutil.copytree(tmp_path / "live", tmp_path / "data")  # what a killed process leaves: all is in the write-ahead log
    file = max((tmp_path / "data" / "log").glob("*.log"), key=lambda each: each.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)
    return tmp_path / "data"


def test_salvage_keeps_what_comes_before_the_damage_and_only_if_the_loss_is_accepted(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Corruption, match="braidmq salvage"), Stage(damaged):
        pass

    assert run("salvage", "--data-dir", str(damaged)) == 1
    assert "--accept-loss" in capsys.readouterr().err
    with pytest.raises(Corruption), Stage(damaged):
        pass

    assert run("salvage", "--data-dir", str(damaged), "--accept-loss") == 0
    assert "start the node" in capsys.readouterr().out
    with Stage(damaged) as stage:
        kept = stage.payloads("#")
    assert kept == [b"%04d" % number * 25 for number in range(len(kept))]
    assert COUNT // 4 < len(kept) < COUNT * 3 // 4


def test_salvage_of_a_directory_without_a_log_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("salvage", "--data-dir", str(tmp_path), "--accept-loss") == 2

    assert "contains no log" in capsys.readouterr().err
