"""``braidmq check``."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from braidmq.base.sample import sample
from braidmq.cli.main import main


class Result(msgspec.Struct):
    """How the command ended, and what it said."""

    exit_code: int
    output: str
    errors: str


@pytest.fixture
def run_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run ``braidmq check`` on a file with the given text."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, *options: str) -> Result:
        Path("braidmq.toml").write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["check", "-c", "braidmq.toml", *options])
        return Result(ended.value.code, *capsys.readouterr())

    return run


def test_a_good_file_is_ok(run_check) -> None:
    result = run_check('[log]\nlevel = "debug"')

    assert result == Result(0, "ok\n", "")


def test_a_wrong_value_is_one_line_and_status_2(run_check) -> None:
    result = run_check("[mqtt]\nrecieve_maximum = 1")

    assert result.exit_code == 2
    assert (
        result.errors == "braidmq check: mqtt.recieve_maximum: unknown key (braidmq.toml); did you mean mqtt.receive_maximum?\n"
    )


def test_classes_of_the_log_that_overlap_are_found_without_a_start(run_check) -> None:
    result = run_check(
        """
        [history.classes.long]
        topics = ["a/#"]
        retention = "365d"
        [history.classes.short]
        topics = ["a/b"]
        retention = "1h"
        """
    )

    assert result.exit_code == 2
    assert result.errors.startswith("braidmq check: history.classes.short.topics: 'a/b' and 'a/#' of the class 'long' match")


def test_notes_come_before_the_verdict(run_check) -> None:
    result = run_check('[registry]\nmode = "linear"')

    note, verdict = result.output.splitlines()
    assert note.startswith("note: not there yet")
    assert (verdict, result.exit_code) == ("ok", 0)


def test_values_are_shown_with_their_origin(run_check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAIDMQ_SYS__INTERVAL", "5s")

    lines = run_check('[log]\nlevel = "debug"', "--show").output.splitlines()

    assert 'log.level = "debug"  # file' in lines
    assert 'sys.interval = "5s"  # environment' in lines
    assert 'log.format = "text"  # default' in lines


def test_the_printed_sample_is_itself_ok(run_check) -> None:
    printed = run_check("", "--sample").output

    assert printed == sample()
    assert run_check(printed).exit_code == 0
