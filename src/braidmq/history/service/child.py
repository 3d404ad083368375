"""The process of the history service: `python -m braidmq.history.service.child FD PARENT`, where FD is a socket to the node.

It runs with the lowest priority. It exits when the node closes its end of the socket, also by crashing; on Linux the kernel ends
it with the node even if it hangs.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from braidmq.base import logs
from braidmq.base.parent import die_with_parent
from braidmq.history import messages
from braidmq.history.service.connection_limit import ConnectionLimit
from braidmq.history.service.node_link import NodeLink

log = logging.getLogger("braidmq.history")

_NICENESS: Final = 19
_TELL_EVERY_S: Final = 1.0


def main(descriptor: int, parent_pid: int) -> NoReturn:
    """Serve until the node exits."""
    if sys.platform == "linux":
        die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the node decides when to exit
    _step_back()
    node = NodeLink(socket.socket(fileno=descriptor))
    setup = node.setup()
    logs.set_up(setup.log_level, setup.log_format, setup.log_lines_per_s_max)  # type: ignore[arg-type] # as the node has them
    over = threading.Event()
    threading.Thread(target=node.listen, args=(over.set,), name="node-link", daemon=True).start()
    with suppress(BrokenPipeError, ConnectionResetError):  # the node closed the socket in the middle of a message
        _serve(setup, node, over)
    # Threads of gRPC may still wait for slow callers; nothing here needs a clean exit.
    os._exit(0)


def _step_back() -> None:
    os.nice(_NICENESS)
    # A process with a nice value still finishes its time slice of milliseconds when a thread of the node becomes ready to run;
    # one with the idle policy is preempted.
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # not permitted in some containers
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _serve(setup: messages.Setup, node: NodeLink, over: threading.Event) -> None:
    # Imported after the set-up, so that a failing import is reported to the node; pyarrow is also slow to import.
    from braidmq.history.service.cores import open_views
    from braidmq.history.service.server import HistoryServer

    view, own = open_views(setup, node, lambda: server.port)
    try:
        _refuse_taken(setup.host, setup.port)
        server = HistoryServer(setup, node, view, own=own)
    except Exception as problem:  # pyarrow has no specific class for an address in use
        node.tell(messages.CannotListen(str(problem).splitlines()[0]))
        return
    node.count_backlogs = server.backlogs
    if own is not None:
        node.answer_core = server.answer_core
    node.tell(messages.Listening(server.port))
    limit = ConnectionLimit.within_limit(server.port, server.is_known)
    threading.Thread(target=limit.watch, args=(over,), name="connection limit", daemon=True).start()
    told = server.quotas.served()
    while not over.wait(_TELL_EVERY_S):
        served = msgspec.structs.replace(server.quotas.served(), connections_refused=limit.refused)
        if served != told:
            told = served
            node.tell(served)


def _refuse_taken(host: str, port: int) -> None:
    """Raise OSError if the port is in use: gRPC would share it with the other process, and calls would reach either."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
