"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process, even a stopped one, when the thread that started it ends. Linux only.

    Exits at once if the parent has ended already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # A parent that ended before the call above sends no signal; the process then has another parent.
    if os.getppid() != parent_pid:
        os._exit(1)


def tied_to_parent(command: Sequence[str]) -> list[str]:
    """A command line that runs a program which knows nothing of this: it ends with the thread that starts it. Linux only."""
    return [sys.executable, "-m", "braidmq.base.parent", str(os.getpid()), *command]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the program of `tied_to_parent`; the kernel keeps the setting for it
