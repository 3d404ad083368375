"""The program etcd: where it is, and how it is started for a cluster of cores on one machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

import braidmq
from braidmq.base.errors import UsageError

COMMITS_KEPT: Final = 10_000
EtcdVersion = tuple[int, int, int]
_TOOLS: Final = Path(braidmq.__file__).resolve().parents[2] / ".tools" / "programs"  # of a checkout, filled by `make`


class EtcdAddresses(Struct, frozen=True):
    """Where a member listens for clients and for other members: ``host:port``."""

    clients: str
    peers: str


def find_etcd(environ: Mapping[str, str] = os.environ) -> str | None:
    """The program: that of ``ETCD_BIN``, the one that `make` unpacked, or the one on the PATH; None: there is none."""
    if chosen := environ.get("ETCD_BIN"):
        return chosen
    unpacked = shutil.which("etcd", path=str(_TOOLS))
    return unpacked or shutil.which("etcd", path=os.pathsep.join([environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"]))


def etcd_version(program: str) -> EtcdVersion:
    """The version of a program. Raises UsageError if it is not etcd. Blocks."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError) as problem:
        raise UsageError(f"{program} cannot be run: {problem}", "set ETCD_BIN, or install etcd-server") from None
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        raise UsageError(f"{program} is not etcd", "set ETCD_BIN, or install etcd-server")
    return int(found[1]), int(found[2]), int(found[3])


def etcd_command(
    program: str,
    version: tuple[int, int, int],
    name: str,
    data_dir: Path,
    members: Mapping[str, EtcdAddresses],
    scheme: str = "http",
) -> list[str]:
    """The command line of one member. ``members``: all of them by name; ``scheme``: ``https`` if clients use TLS."""
    own = members[name]
    # Without notes of progress a reader of quiet tables would have to list them again after every compaction.
    progress = "watch-progress-notify-interval" if version >= (3, 6, 0) else "experimental-watch-progress-notify-interval"
    return [
        program,
        f"--name={name}",
        f"--data-dir={data_dir}",
        f"--listen-client-urls={scheme}://{own.clients}",
        f"--advertise-client-urls={scheme}://{own.clients}",
        f"--listen-peer-urls=http://{own.peers}",
        f"--initial-advertise-peer-urls=http://{own.peers}",
        "--initial-cluster=" + ",".join(f"{each}=http://{members[each].peers}" for each in sorted(members)),
        "--auto-compaction-mode=revision",
        f"--auto-compaction-retention={COMMITS_KEPT}",
        f"--{progress}=1s",
    ]
