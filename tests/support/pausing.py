"""Stops processes for a while."""

from __future__ import annotations

import os
import signal
import subprocess


def pause(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Return when all threads of this child have stopped: a thread that waits for the disk does so later than the others."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
