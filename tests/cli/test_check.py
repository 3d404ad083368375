"""``braidmq check``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from braidmq.base.config.sample import sample
from braidmq.cli.main import main
from tests.support.certificates import Authority


class Result(msgspec.Struct):
    """How the command ended, and what it said."""

    exit_code: int
    output: str
    errors: str


RunCheck = Callable[..., Result]


@pytest.fixture
def run_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCheck:
    """Run ``braidmq check`` on a file with the given text."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, *options: str) -> Result:
        Path("braidmq.toml").write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["check", "-c", "braidmq.toml", *options])
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, *capsys.readouterr())

    return run


def test_a_valid_file_is_ok(run_check: RunCheck) -> None:
    result = run_check('[log]\nlevel = "debug"')

    assert result == Result(0, "ok\n", "")


def test_a_wrong_value_is_one_line_and_status_2(run_check: RunCheck) -> None:
    result = run_check("[mqtt]\nrecieve_maximum = 1")

    assert result.exit_code == 2
    assert (
        result.errors == "braidmq check: mqtt.recieve_maximum: unknown key (braidmq.toml); did you mean mqtt.receive_maximum?\n"
    )


def test_classes_of_the_log_that_overlap_are_found_without_a_start(run_check: RunCheck) -> None:
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


def test_notes_are_printed_before_the_result(run_check: RunCheck) -> None:
    result = run_check('[links.region-b]\nserver = "b.example:8883"\ntopics = ["t/global/#"]')

    note, verdict = result.output.splitlines()
    assert note.startswith("note: not supported yet")
    assert (verdict, result.exit_code) == ("ok", 0)


def test_values_are_shown_with_their_origin(run_check: RunCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAIDMQ_SYS__INTERVAL", "5s")

    lines = run_check('[log]\nlevel = "debug"', "--show").output.splitlines()

    assert 'log.level = "debug"  # file' in lines
    assert 'sys.interval = "5s"  # environment' in lines
    assert 'log.format = "text"  # default' in lines


def test_the_printed_sample_is_itself_ok(run_check: RunCheck) -> None:
    printed = run_check("", "--sample").output

    assert printed == sample()
    assert run_check(printed).exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 3000 + "]" * 3000,
        "a = " + "{a=" * 2000 + "1" + "}" * 2000,
        "[hooks]\nload = " + "[" * 3000 + "]" * 3000,
        "[hooks]\nload" + ".a" * 3000 + " = 1",
        "[hooks]\nload = " + "[" * 280 + "]" * 280,
    ],
    ids=["arrays", "tables", "a known key", "dotted", "just readable"],
)
@pytest.mark.row(65)
def test_a_file_that_is_nested_too_deeply_is_one_readable_line(run_check: RunCheck, text: str) -> None:
    result = run_check(text)

    assert result.exit_code == 2
    assert result.errors.startswith("braidmq check: ")
    assert "unexpectedly" not in result.errors
    assert result.errors.count("\n") == 1
    assert len(result.errors) < 500


@pytest.mark.row(65)
def test_a_variable_that_is_nested_too_deeply_is_one_readable_line(run_check: RunCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAIDMQ_HOOKS__LOAD", "[" * 3000 + "]" * 3000)

    result = run_check("")

    assert result.exit_code == 2
    assert result.errors.startswith("braidmq check: hooks.load: must be a list")
    assert len(result.errors) < 500


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("os:system", "'os:system' is not a hook; use a subclass of braidmq.hooks.Hook"),
        ("sys:exit", "'sys:exit' is not a hook; use a subclass of braidmq.hooks.Hook"),
        (
            "collections:OrderedDict",
            "'collections:OrderedDict' is not a hook; use a subclass of braidmq.hooks.Hook",
        ),
        ("no.such:Hook", "'no.such:Hook' cannot be loaded (ModuleNotFoundError: No module named 'no'); write it as"),
        ("os", "'os' cannot be loaded (AttributeError: "),
    ],
)
@pytest.mark.row(65)
def test_an_invalid_hook_is_found_without_a_start(run_check: RunCheck, name: str, said: str) -> None:
    result = run_check(f'[hooks]\nload = ["{name}"]')

    assert result.exit_code == 2
    assert result.errors.startswith(f"braidmq check: hooks.load: {said}")


@pytest.mark.row(65)
def test_a_hook_whose_module_exits_the_process_is_reported_as_an_error(
    run_check: RunCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("quits.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(".")

    result = run_check('[hooks]\nload = ["quits:Hook"]')

    assert result.exit_code == 2
    assert "'quits:Hook' cannot be loaded (SystemExit: 0)" in result.errors


def test_a_hook_that_can_be_loaded_is_ok(run_check: RunCheck) -> None:
    assert run_check('[hooks]\nload = ["tests.support.hooks:Doorkeeper"]').output == "ok\n"


@pytest.mark.row(65)
def test_a_data_directory_where_nothing_can_be_made_is_found_without_a_start(run_check: RunCheck) -> None:
    result = run_check('[node]\ndata_dir = "/proc/x"')

    assert result.exit_code == 2
    assert result.errors.startswith("braidmq check: node.data_dir: cannot create files in /proc: ")


@pytest.mark.row(65)
def test_a_data_directory_that_is_a_file_is_found_without_a_start(run_check: RunCheck) -> None:
    Path("taken").touch()

    result = run_check('[node]\ndata_dir = "taken/data"')

    assert result.exit_code == 2
    assert "taken is not a directory" in result.errors


def test_a_data_directory_that_can_be_made_is_ok_and_is_not_made(run_check: RunCheck) -> None:
    result = run_check('[node]\ndata_dir = "deep/down/data"')

    assert result == Result(0, "ok\n", "")
    assert [found.name for found in Path().iterdir()] == ["braidmq.toml"]


def test_a_data_directory_of_another_user_is_noted(run_check: RunCheck, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    result = run_check('[node]\ndata_dir = "theirs"')

    assert result.exit_code == 0
    assert result.output.startswith("note: node.data_dir: this user cannot write in ")


def test_an_invalid_revocation_list_is_found_without_a_start(run_check: RunCheck, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()

    result = run_check(
        f"""
        [listeners.tls.default]
        bind = "127.0.0.1:8883"
        cert_file = "{server.cert_file}"
        key_file = "{server.key_file}"
        ca_file = "{authority.cert_file}"
        crl_file = "{authority.cert_file}"
        verify = "required"
        """
    )

    assert result.exit_code == 2
    assert "listeners.tls.default.crl_file" in result.errors
    assert "must hold revocation lists and nothing else" in result.errors
