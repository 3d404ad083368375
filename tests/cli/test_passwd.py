"""``braidmq passwd``: writes what the broker reads, keeps secrets out of arguments, and fails in one line."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from braidmq.access import hashes, passwords
from braidmq.cli.main import main


class Typed:
    """Runs the command with text on standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        self._monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main(["passwd", *arguments])
        output = self._capsys.readouterr()
        status = ended.value.code
        assert isinstance(status, int)
        return status, output.out, output.err


@pytest.fixture
def passwd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(monkeypatch, capsys)


def read(path: Path) -> passwords.Users:
    return passwords.parse(path.read_text())


def test_a_password_from_standard_input_verifies(tmp_path: Path, passwd: Typed) -> None:
    path = tmp_path / "passwd"

    status, out, err = passwd("--stdin", str(path), "alice", stdin="hunter2 with spaces \n")

    assert (status, err) == (0, "")
    assert "hunter2" not in out
    assert hashes.verify(read(path).password_hash("alice") or "", b"hunter2 with spaces ")
    assert read(path).scram_keys("alice") is None
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_prompt_asks_twice_and_shows_nothing(tmp_path: Path, passwd: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["hunter2", "hunter3", "hunter2", "hunter2"])
    monkeypatch.setattr("click.termui.hidden_prompt_func", lambda prompt: next(answers))
    path = tmp_path / "passwd"

    status, out, _ = passwd(str(path), "alice")

    assert status == 0
    assert "hunter" not in out
    assert next(answers, None) is None
    assert hashes.verify(read(path).password_hash("alice") or "", b"hunter2")


def test_a_password_is_never_taken_from_the_arguments(tmp_path: Path, passwd: Typed) -> None:
    for arguments in ((str(tmp_path / "p"), "alice", "hunter2"), ("-b", str(tmp_path / "p"), "alice", "hunter2")):
        status, _, err = passwd(*arguments)

        assert status == 2
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "p").exists()


def test_scram_keys_are_written_beside_and_renewed_with_the_password(tmp_path: Path, passwd: Typed) -> None:
    path = tmp_path / "passwd"
    passwd("--stdin", "--scram", str(path), "alice", stdin="one\n")
    first = read(path).scram_keys("alice")

    status, _, _ = passwd("--stdin", str(path), "alice", stdin="two\n")

    second = read(path).scram_keys("alice")
    assert status == 0
    assert first is not None
    assert second is not None
    assert first.stored_key != second.stored_key
    assert len(path.read_text().splitlines()) == 2


def test_scram_rounds_can_be_chosen_but_not_too_low(tmp_path: Path, passwd: Typed) -> None:
    path = tmp_path / "passwd"

    assert passwd("--stdin", "--scram", "--scram-rounds", "100", str(path), "alice", stdin="x\n")[0] == 2
    assert passwd("--stdin", "--scram", "--scram-rounds", "5000", str(path), "alice", stdin="x\n")[0] == 0

    keys = read(path).scram_keys("alice")
    assert keys is not None
    assert keys.rounds == 5000


def test_a_user_can_be_deleted(tmp_path: Path, passwd: Typed) -> None:
    path = tmp_path / "passwd"
    passwd("--stdin", "--scram", str(path), "alice", stdin="x\n")
    passwd("--stdin", str(path), "bob", stdin="x\n")

    assert passwd("-D", str(path), "alice")[0] == 0
    status, _, err = passwd("-D", str(path), "alice")

    assert status == 1
    assert "alice" in err
    assert "alice" not in read(path)
    assert "bob" in read(path)


@pytest.mark.parametrize(
    ("content", "arguments", "stdin", "status"),
    [
        (None, ["--stdin", "passwd", "alice"], "", 2),
        (None, ["--stdin", "passwd", "alice"], "\n", 2),
        (None, ["--stdin", "passwd", "al:ice"], "x\n", 2),
        (None, ["--stdin", "passwd", ""], "x\n", 2),
        (None, ["--stdin", "nowhere/passwd", "alice"], "x\n", 1),
        (None, ["-D", "passwd", "alice"], "", 1),
        (b"bob:plain\n", ["--stdin", "passwd", "alice"], "x\n", 1),
        (b"\xff\xff", ["--stdin", "passwd", "alice"], "x\n", 1),
    ],
)
def test_a_failure_is_one_line_and_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passwd: Typed,
    content: bytes | None,
    arguments: list[str],
    stdin: str,
    status: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("passwd").write_bytes(content)

    ended, out, err = passwd(*arguments, stdin=stdin)

    assert ended == status
    assert out == ""
    assert len(err.splitlines()) == 1
    assert (Path("passwd").read_bytes() if content is not None else None) == content
    assert [file.name for file in tmp_path.iterdir()] == ([] if content is None else ["passwd"])


@pytest.mark.needs("mosquitto_passwd")
def test_users_of_mosquitto_passwd_stay_when_another_is_added(tmp_path: Path, passwd: Typed) -> None:
    path = tmp_path / "passwd"
    path.touch()
    subprocess.run(["mosquitto_passwd", "-b", str(path), "old", "secret"], check=True, capture_output=True)
    line = path.read_text()

    assert passwd("--stdin", str(path), "new", stdin="x\n")[0] == 0

    assert path.read_text().startswith(line)
    assert "new" in read(path)
