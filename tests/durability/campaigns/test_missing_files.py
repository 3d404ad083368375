"""Log files that are gone or cut short: the node says so, and does not begin anew as if nothing had been acknowledged."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from braidmq.cli.salvage import salvage
from braidmq.storage.engine.mark import mark_path, read_mark
from tests.durability.campaigns import power
from tests.durability.campaigns.node import client, kill, log_dir, read_log, start, stop, write_config
from tests.support.started import Started, try_start

Damage = Callable[[Path], None]

DEADLINE_S = 20.0


def remove_journal(log: Path) -> None:
    for journal in log.glob("*.log"):
        journal.unlink()


def cut_journal(log: Path) -> None:
    journal = power.newest_log(log)
    os.truncate(journal, power.synced_bytes(journal) // 2)


def remove_log(log: Path) -> None:
    shutil.rmtree(log)


def publish_and_end(file: Path, end: Callable[[Started], None]) -> None:
    """Let a node acknowledge 200 messages and make a session, and end it."""
    with start(file) as node:
        port = node.await_port()
        client(port, client_id="waiting", persistent=True).subscribe("news", qos=1)
        wire = client(port)
        for number in range(200):
            assert wire.publish("t", b"%d" % number, 1) < 0x80
        await_mark(log_dir(file))
        end(node)


def await_mark(log: Path) -> None:
    """Wait until the mark tells of all messages: each has a row of its own, and comes with one of its shard."""
    deadline = time.monotonic() + DEADLINE_S
    while (mark := read_mark(mark_path(log))) is None or mark.sequence < 400:
        assert time.monotonic() < deadline, mark
        time.sleep(0.001)


def content(log: Path) -> dict[str, int]:
    """What counts in a log: the files of the database, without what it says about itself."""
    files = log.iterdir() if log.exists() else ()
    return {each.name: each.stat().st_size for each in files if each.suffix in {".log", ".sst"} or "MANIFEST" in each.name}


@pytest.mark.row("D9")
@pytest.mark.parametrize(("damage", "end"), [(remove_journal, kill), (cut_journal, kill), (remove_log, kill), (remove_log, stop)])
def test_a_log_that_has_lost_acknowledged_messages_is_not_opened_and_not_changed(
    tmp_path: Path, damage: Damage, end: Callable[[Started], None]
) -> None:
    file = write_config(tmp_path)
    publish_and_end(file, end)
    damage(log_dir(file))
    left = content(log_dir(file))

    refused = try_start(file)

    assert refused.returncode != 0
    assert "has lost acknowledged data" in refused.stderr
    assert "braidmq salvage --data-dir data --accept-loss" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert content(log_dir(file)) == left


@pytest.mark.row("D9")
def test_a_journal_that_is_missing_after_an_orderly_stop_is_not_a_loss(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    publish_and_end(file, stop)
    remove_journal(log_dir(file))

    with start(file) as node:
        node.await_line("has 200 records and 1 durable sessions")
        stop(node)


@pytest.mark.row("D9")
@pytest.mark.parametrize("damage", [cut_journal, remove_log])
def test_an_operator_who_accepts_the_loss_can_continue_with_the_remaining_data(tmp_path: Path, damage: Damage) -> None:
    file = write_config(tmp_path)
    publish_and_end(file, kill)
    damage(log_dir(file))
    command = ["--data-dir", str(tmp_path / "data")]

    refused = CliRunner().invoke(salvage, command)
    assert "--accept-loss" in str(refused.exception)
    assert CliRunner().invoke(salvage, [*command, "--accept-loss"]).exit_code == 0

    with start(file) as node:
        assert client(node.await_port()).publish("t", b"new", 1) < 0x80
        stop(node)
    found = [record.payload for record in read_log(file)]
    assert found == [b"%d" % number for number in range(len(found) - 1)] + [b"new"]
    assert len(found) < 201


@pytest.mark.row("D9")
def test_a_start_logs_how_many_records_and_sessions_it_found(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    publish_and_end(file, kill)

    with start(file) as node:
        node.await_line(r"the log in data/log has 200 records and 1 durable sessions")
        stop(node)


@pytest.mark.row("D9")
def test_a_directory_without_a_mark_is_opened_and_gets_one(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    publish_and_end(file, kill)
    mark = tmp_path / "data" / "log.mark"
    mark.unlink()

    with start(file) as node:
        node.await_port()
        stop(node)

    assert mark.exists()
    assert len(read_log(file)) == 200


@pytest.mark.row("D9")
def test_the_log_of_another_node_is_not_accepted_in_place_of_the_original(tmp_path: Path) -> None:
    files = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        files.append(write_config(tmp_path / name))
        publish_and_end(files[-1], kill)
    shutil.rmtree(log_dir(files[0]))
    shutil.copytree(log_dir(files[1]), log_dir(files[0]))

    refused = try_start(files[0])

    assert refused.returncode != 0
    assert "the directory now holds a different log" in refused.stderr
