"""Where the program etcd is looked for, and how it is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.base.errors import UsageError
from braidmq.cluster.corestore.etcd import program
from braidmq.cluster.corestore.etcd.program import EtcdAddresses, etcd_command, etcd_version, find_etcd

MEMBERS = {name: EtcdAddresses(f"h{name}:2379", f"h{name}:2380") for name in ("a", "b", "c")}


def make_program(folder: Path, says: str = "etcd Version: 3.5.16") -> str:
    folder.mkdir(exist_ok=True)
    file = folder / "etcd"
    file.write_text(f"#!/bin/sh\necho '{says}'\n")
    file.chmod(0o755)
    return str(file)


def test_the_chosen_program_comes_first_then_that_of_the_checkout_then_that_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked, installed = tmp_path / "unpacked", tmp_path / "installed"
    monkeypatch.setattr(program, "_TOOLS", unpacked)
    on_path = make_program(installed)
    environ = {"PATH": str(installed)}

    assert find_etcd(environ) == on_path
    in_checkout = make_program(unpacked)
    assert find_etcd(environ) == in_checkout
    assert find_etcd({**environ, "ETCD_BIN": "/opt/etcd"}) == "/opt/etcd"


def test_the_version_is_what_the_program_says(tmp_path: Path) -> None:
    assert etcd_version(make_program(tmp_path / "new", "etcd Version: 3.10.2")) == (3, 10, 2)
    for wrong in (make_program(tmp_path / "other", "some other program"), str(tmp_path / "missing")):
        with pytest.raises(UsageError, match="ETCD_BIN"):
            etcd_version(wrong)


@pytest.mark.parametrize(
    ("version", "progress"),
    [((3, 4, 22), "--experimental-watch-progress-notify-interval=1s"), ((3, 6, 0), "--watch-progress-notify-interval=1s")],
)
def test_a_member_forgets_old_revisions_and_tells_quiet_readers_of_progress(
    tmp_path: Path, version: program.EtcdVersion, progress: str
) -> None:
    command = etcd_command("/usr/bin/etcd", version, "b", tmp_path / "data", MEMBERS)

    assert command[0] == "/usr/bin/etcd"
    assert set(command[1:]) == {
        "--name=b",
        f"--data-dir={tmp_path}/data",
        "--listen-client-urls=http://hb:2379",
        "--advertise-client-urls=http://hb:2379",
        "--listen-peer-urls=http://hb:2380",
        "--initial-advertise-peer-urls=http://hb:2380",
        "--initial-cluster=a=http://ha:2380,b=http://hb:2380,c=http://hc:2380",
        "--auto-compaction-mode=revision",
        "--auto-compaction-retention=10000",
        progress,
    }
