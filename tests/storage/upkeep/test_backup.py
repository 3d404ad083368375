"""Backups and restores of a data directory: whole or not there, and never taken for the log that they are of."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from braidmq.base.errors import BraidError, Corruption, Unavailable, UsageError
from braidmq.storage.log import LogOptions
from braidmq.storage.upkeep.backup import MANIFEST_NAME, Manifest, make_backup, read_manifest, restore
from tests.storage.message_log import BrokenDisk, Stage


class Stop(Exception):
    """Raised by a test in the middle of the work."""


def silent(done_bytes: int, total_bytes: int) -> None:
    pass


def back_up(stage: Stage, data_dir: Path, target: Path) -> Manifest:
    return make_backup(stage.log.checkpoint, stage.log.log_id.hex(), data_dir, target, silent)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory whose log has three records, with bans beside it."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "bans.json").write_text("[]\n")
    with Stage(folder) as stage:
        for number in range(3):
            stage.publish(f"c{number}", "t", b"%d" % number)
    return folder


@pytest.fixture
def made(data_dir: Path, tmp_path: Path) -> Path:
    """A backup of it."""
    with Stage(data_dir) as stage:
        back_up(stage, data_dir, tmp_path / "backup")
    return tmp_path / "backup"


def test_a_restored_log_has_every_record_and_an_id_of_its_own(data_dir: Path, tmp_path: Path) -> None:
    new = tmp_path / "new" / "data"
    with Stage(data_dir) as stage:
        stage.publish("c", "u/1", b"last")
        manifest = back_up(stage, data_dir, tmp_path / "backup")
        stage.publish("c", "u/2", b"too late")
        old_id = stage.log.log_id.hex()

    restored = restore(tmp_path / "backup", new, silent)

    with Stage(new) as stage:
        assert sorted(stage.payloads("#")) == [b"0", b"1", b"2", b"last"]
        assert stage.log.log_id.hex() == restored.log_id
    assert (new / "bans.json").read_text() == "[]\n"
    assert manifest.log_id == old_id != restored.log_id
    assert restore(tmp_path / "backup", tmp_path / "other", silent).log_id not in (old_id, restored.log_id)
    assert restore(tmp_path / "backup", tmp_path / "same", silent, keeps_log_id=True).log_id == old_id
    with Stage(tmp_path / "same") as stage:
        assert stage.log.log_id.hex() == old_id


def test_restored_files_are_accessible_only_to_their_owner(made: Path, tmp_path: Path) -> None:
    restore(made, tmp_path / "new", silent)

    for folder in (made, tmp_path / "new"):
        modes = {path: path.stat().st_mode & 0o077 for path in [folder, folder / "log", folder / "bans.json"]}
        assert set(modes.values()) == {0}


def test_a_restored_log_leaves_the_backup_as_it_was(made: Path, tmp_path: Path) -> None:
    with_first = tmp_path / "first"
    restore(made, with_first, silent)
    with Stage(with_first) as stage:
        stage.publish("c", "t", b"new")

    restore(made, tmp_path / "second", silent)

    with Stage(tmp_path / "second") as stage:
        assert len(stage.payloads("#")) == 3


def test_the_running_log_does_not_change_a_backup_that_shares_its_tables(data_dir: Path, tmp_path: Path) -> None:
    with Stage(data_dir) as stage:
        back_up(stage, data_dir, tmp_path / "backup")
        tables = [path for path in (tmp_path / "backup" / "log").iterdir() if path.suffix == ".sst"]
        assert any(table.stat().st_nlink > 1 for table in tables)
        for number in range(50):
            stage.publish("c", f"t/{number}", os.urandom(1000))

    restore(tmp_path / "backup", tmp_path / "new", silent)


def test_tables_are_copied_where_they_cannot_be_linked(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    with Stage(data_dir) as stage:
        checkpoint = stage.log.checkpoint

        def then_unlinkable(path: Path) -> None:
            checkpoint(path)
            monkeypatch.setattr(os, "link", refuse)

        make_backup(then_unlinkable, stage.log.log_id.hex(), data_dir, tmp_path / "backup", silent)

    tables = [path for path in (tmp_path / "backup" / "log").iterdir() if path.suffix == ".sst"]
    assert tables
    assert {table.stat().st_nlink for table in tables} == {1}
    restore(tmp_path / "backup", tmp_path / "new", silent)


@pytest.mark.parametrize("where", ["{backup}", "{data}/inside", "{data}/log/inside", "{missing}/backup"])
def test_an_invalid_backup_target_is_rejected_and_not_changed(made: Path, data_dir: Path, tmp_path: Path, where: str) -> None:
    target = Path(where.format(backup=made, data=data_dir, missing=tmp_path / "nowhere"))
    before = sorted(tmp_path.rglob("*"))

    with Stage(data_dir) as stage, pytest.raises(UsageError):
        back_up(stage, data_dir, target)

    gone_or_new = set(before) ^ set(tmp_path.rglob("*"))
    assert all(path.parent == data_dir / "log" for path in gone_or_new)  # the engine's own comings and goings


def test_a_backup_that_is_stopped_leaves_nothing_behind(data_dir: Path, tmp_path: Path) -> None:
    def stop(done_bytes: int, total_bytes: int) -> None:
        raise Stop

    with Stage(data_dir) as stage, pytest.raises(Stop):
        make_backup(stage.log.checkpoint, "00", data_dir, tmp_path / "backup", stop)

    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert sorted(path.name for path in data_dir.iterdir()) == ["bans.json", "log", "log.mark"]


def test_remains_of_a_killed_node_do_not_prevent_the_next_backup(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "backup.partial").mkdir()
    (data_dir / "backup.partial" / "000001.sst").write_bytes(b"half")

    with Stage(data_dir) as stage:
        manifest = back_up(stage, data_dir, tmp_path / "backup")

    assert not (data_dir / "backup.partial").exists()
    assert "log/000001.sst" not in [file.path for file in manifest.files]


def test_a_file_that_was_changed_cut_or_lost_is_named(made: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    for file in read_manifest(made).files:
        place = made / file.path
        data = place.read_bytes()
        damages = [data[:-1], data + b"\0", data[:-1] + bytes([data[-1] ^ 1]), None] if data else [b"\0", None]
        for damage in damages:
            place.unlink()
            if damage is not None:
                place.write_bytes(damage)

            with pytest.raises(Corruption, match=file.path):
                restore(made, new, silent)

            assert not new.exists()
        place.write_bytes(data)
    restore(made, new, silent)


def test_restoring_into_a_directory_in_use_is_refused(made: Path, data_dir: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    with pytest.raises(UsageError, match="is not empty"):
        restore(made, data_dir, silent)
    restore(made, empty, silent)

    with Stage(data_dir) as stage:
        assert len(stage.payloads("#")) == 3


def test_a_restore_that_is_stopped_leaves_nothing_behind(made: Path, tmp_path: Path) -> None:
    def stop_late(done_bytes: int, total_bytes: int) -> None:
        if done_bytes == total_bytes:
            raise Stop

    with pytest.raises(Stop):
        restore(made, tmp_path / "new", stop_late)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data"]


def test_progress_ends_with_all_bytes(made: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    restore(made, tmp_path / "new", lambda done, total: seen.append((done, total)))

    total = read_manifest(made).total_bytes
    assert seen == sorted(seen)
    assert {each for _, each in seen} == {total}
    assert seen[-1][0] == total


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "log/../../x", "log/..", "log", "", "ctl.token", "log/a/b"])
def test_a_manifest_cannot_name_files_elsewhere(made: Path, tmp_path: Path, path: str) -> None:
    manifest = msgspec.json.decode((made / MANIFEST_NAME).read_bytes())
    manifest["files"][0]["path"] = path
    (made / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))

    with pytest.raises(Corruption, match="its manifest names"):
        restore(made, tmp_path / "new", silent)


@pytest.mark.parametrize(
    ("manifest", "problem", "words"),
    [
        (None, UsageError, "is not a backup"),
        (b"{}", Corruption, "damaged"),
        (b"{", Corruption, "damaged"),
        (b'{"format": 2, "version": "9.0", "log_id": "", "made_at": "", "files": []}', UsageError, "braidmq 9.0 or newer"),
    ],
    ids=["none", "empty", "cut", "newer"],
)
def test_a_directory_that_is_not_a_backup_is_rejected(
    made: Path, tmp_path: Path, manifest: bytes | None, problem: type[BraidError], words: str
) -> None:
    (made / MANIFEST_NAME).unlink()
    if manifest is not None:
        (made / MANIFEST_NAME).write_bytes(manifest)

    with pytest.raises(problem, match=words):
        restore(made, tmp_path / "new", silent)


def test_a_failing_disk_is_reported_as_the_reason(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with Stage(data_dir) as stage:
        checkpoint = stage.log.checkpoint

        def then_full(path: Path) -> None:
            checkpoint(path)
            monkeypatch.setattr(os, "fsync", full)

        with pytest.raises(Unavailable, match="No space left"):
            make_backup(then_full, "00", data_dir, tmp_path / "backup", silent)
        monkeypatch.undo()

    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_log_that_could_not_commit_is_not_backed_up(data_dir: Path, tmp_path: Path) -> None:
    disk = BrokenDisk()
    with Stage(data_dir, options=LogOptions(disk=disk)) as stage:
        disk.is_broken = True
        stage.append("c", "t", b"in doubt")
        stage.log.flush()
        while not stage.log.check().needs_restart:
            time.sleep(0.001)  # the commit fails in a thread that tells nobody else

        with pytest.raises(Unavailable, match="could not be committed"):
            back_up(stage, data_dir, tmp_path / "backup")

    assert [path.name for path in tmp_path.iterdir()] == ["data"]
