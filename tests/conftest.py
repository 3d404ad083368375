"""Policy shared by all tests: where programs are found, what a missing one means, how long property tests search."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from braidmq.cluster.corestore.etcd.program import find_etcd
from braidmq.lane import is_compiled
from tests.support import through_node

if through_node.is_chosen():  # before test files import the broker
    through_node.install()

ROOT = Path(__file__).resolve().parent.parent
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("default"), max_examples=30)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# `make` unpacks missing programs there; servers are in sbin, which a user's PATH often lacks.
os.environ["PATH"] = os.pathsep.join(
    [str(ROOT / ".tools" / "programs"), os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin"]
)
os.environ["NODE_PATH"] = str(ROOT / ".tools" / "node" / "node_modules")
# The history service is a process of its own on a fixed port: nodes under test have it only if they ask for it.
os.environ["BRAIDMQ_HISTORY__BIND"] = ""

# A shell that starts us in the background leaves SIGINT ignored, and programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def is_there(program: str) -> bool:
    """True if the program is on the PATH; ``mqtt.js`` stands for node's MQTT.js, ``ipv6`` for a loopback address of that kind,
    ``tmpfs`` for the right to mount a file system, ``netns`` for the program ``ip`` and the right to make network namespaces.
    """
    if program == "ipv6":
        return has_ipv6()
    if program == "tmpfs":
        return may_mount() and shutil.which("mount") is not None
    if program == "netns":
        return may(CAP_SYS_ADMIN) and may(CAP_NET_ADMIN) and shutil.which("ip") is not None
    if program == "etcd":
        return find_etcd() is not None
    if program == "mqtt.js":
        return shutil.which("node") is not None and Path(os.environ["NODE_PATH"], "mqtt").is_dir()
    return shutil.which(program) is not None


def has_ipv6() -> bool:
    """True if this machine has an IPv6 loopback address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def may_mount() -> bool:
    """True if this process has CAP_SYS_ADMIN, which root in a container often lacks."""
    return may(CAP_SYS_ADMIN)


def may(capability: int) -> bool:
    """True if this process has the capability."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return any(int(line.split()[1], 16) >> capability & 1 for line in lines if line.startswith("CapEff:"))


def pytest_report_header() -> str:
    """Say which form of the lane is under test."""
    return f"lane: {'compiled' if is_compiled() else 'uncompiled'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test of the lane is a smoke test; soak tests run only when asked for by mark."""
    for item in items:
        if "lane" in item.path.relative_to(ROOT).parts:
            item.add_marker(pytest.mark.smoke)
    if "soak" not in config.getoption("markexpr"):
        soak = [item for item in items if item.get_closest_marker("soak")]
        if soak:
            config.hook.pytest_deselected(items=soak)
            items[:] = [item for item in items if item not in soak]


def pytest_collection_finish() -> None:
    """Hide what was imported and collected from the garbage collector, as `braidmq start` does.

    A collection that looks at eleven thousand tests stops the nodes under test for most of a second on a busy machine.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose programs are missing; where everything must be there (CI is set), fail them instead."""
    missing = [program for mark in item.iter_markers("needs") for program in mark.args if not is_there(program)]
    if missing:
        reason = f"not on this machine: {', '.join(missing)} (`make test` provides what it can)"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
