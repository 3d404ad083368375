"""The password file: strict reading, and edits that touch the lines of one user only."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from braidmq.access import files, hashes, passwords, scram
from braidmq.base.errors import ConfigError, UsageError

HASH = hashes.make(b"secret")
OTHER = hashes.make(b"other")
KEYS = scram.make_keys("secret")


def test_users_comments_and_scram_keys_are_read() -> None:
    users = passwords.parse(f"# people\n\nalice:{HASH}\r\nbob:{scram.format_keys(KEYS)}\nalice:{scram.format_keys(KEYS)}\n")

    assert len(users) == 2
    assert users.password_hash("alice") == HASH
    assert users.scram_keys("alice") == KEYS
    assert users.password_hash("bob") is None
    assert "carol" not in users


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("alice", "no colon"),
        (":" + HASH, "empty"),
        ("alice:secret", "plain-text"),
        ("alice:", "plain-text"),
        ("al\x07ice:" + HASH, "control"),
        ("bob:" + HASH, "already"),
        ("bob:$scram-sha-256$i=1$YQ==$YQ==$YQ==", "rounds"),
        ("bob:$scram-sha-256$i=4096$YQ==$YQ==$YQ==", "length"),
        ("bob:$scram-sha-256$nothing", "incomplete"),
    ],
    ids=range(9),  # the hash differs from run to run, and parallel runs compare the names of tests
)
def test_one_bad_line_refuses_the_whole_file_with_its_number(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"line 3: .*{why}"):
        passwords.parse(f"# people\nbob:{OTHER}\n{line}\n")


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "passwd"

    passwords.set_password(str(path), "alice", HASH, None)

    assert path.read_text() == f"alice:{HASH}\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_edit_keeps_all_other_lines_and_their_order(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"# first\nalice:{HASH}\n\n# about bob\nbob:{HASH}\nalice:{scram.format_keys(KEYS)}\nzoe:{HASH}")

    passwords.set_password(str(path), "alice", OTHER, None)

    assert path.read_text() == f"# first\nalice:{OTHER}\n\n# about bob\nbob:{HASH}\nzoe:{HASH}\n"


def test_a_rewritten_file_is_never_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"alice:{HASH}\n")
    path.chmod(0o644)

    passwords.set_password(str(path), "alice", OTHER, None)

    assert path.stat().st_mode & 0o777 == 0o640


def test_deleting_takes_every_line_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"alice:{HASH}\nbob:{HASH}\nalice:{scram.format_keys(KEYS)}\n")

    assert passwords.delete_user(str(path), "alice")
    assert not passwords.delete_user(str(path), "alice")
    assert path.read_text() == f"bob:{HASH}\n"


@pytest.mark.parametrize("name", ["", "a:b", "#x", "a\nb", "a\0"])
def test_a_name_that_would_break_the_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        passwords.set_password(str(tmp_path / "passwd"), name, HASH, None)
    assert list(tmp_path.iterdir()) == []


def test_replacing_a_hash_leaves_a_line_alone_that_changed_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"alice:{HASH}\nbob:{OTHER}\n")

    is_changed = passwords.replace_hashes(str(path), {("alice", OTHER): "new", ("bob", HASH): "new"})

    assert not is_changed
    assert path.read_text() == f"alice:{HASH}\nbob:{OTHER}\n"


def test_an_edit_that_comes_between_reading_and_writing_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "passwd"
    path.write_text(f"alice:{HASH}\n")
    real_replace = files.replace
    calls: list[bytes] = []

    def replace_late(name: str, data: bytes, *, expected: files.Signature | None = None) -> bool:
        if not calls:
            path.write_text(f"alice:{HASH}\ncarol:{HASH}\n")  # somebody with an editor, who takes no lock
        calls.append(data)
        return real_replace(name, data, expected=expected)

    monkeypatch.setattr(files, "replace", replace_late)
    passwords.replace_hashes(str(path), {("alice", HASH): OTHER})

    assert len(calls) == 2
    assert path.read_text() == f"alice:{OTHER}\ncarol:{HASH}\n"
    assert os.listdir(tmp_path) == ["passwd"]


def test_editors_in_many_threads_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    names = [f"user{number}" for number in range(12)]
    threads = [threading.Thread(target=passwords.set_password, args=(str(path), name, HASH, None)) for name in names]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(line.partition(":")[0] for line in path.read_text().splitlines()) == sorted(names)


def test_a_linked_file_is_changed_where_it_is(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text(f"alice:{HASH}\n")
    link.symlink_to(real)

    passwords.set_password(str(link), "alice", OTHER, None)

    assert link.is_symlink()
    assert real.read_text() == f"alice:{OTHER}\n"
