"""Two machines in two network namespaces with a cable between them: clients that are not on loopback.

A node runs in ``here``; connections are made from ``there``. A thread enters a namespace for good, and a socket stays in the one
where it was made, so each connection is made in a thread of its own.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from tests.support.started import COMMAND

Result = TypeVar("Result")

_CLONE_NEWNET = 0x4000_0000
_numbers = itertools.count(1)

NODE_4, NODE_6 = "10.77.0.1", "fd77::1"
CLIENTS_4 = ("10.77.0.2", "10.77.0.3")
CLIENTS_6 = ("fd77::2", "fd77::3", "fd77:0:0:1::2")  # the last one is of another household


def ip(*words: str) -> None:
    """Run iproute2."""
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


class Network:
    """The two namespaces. A context manager; leaving it removes them."""

    def __init__(self) -> None:
        stem = f"bmq{os.getpid()}x{next(_numbers)}"
        self.here, self.there = f"{stem}a", f"{stem}b"

    def __enter__(self) -> Network:
        try:
            for name in (self.here, self.there):
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            ip("-n", self.here, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", self.there)
            for name, addresses in (
                (self.here, [f"{NODE_4}/24", f"{NODE_6}/48"]),
                (self.there, [*(f"{each}/24" for each in CLIENTS_4), *(f"{each}/48" for each in CLIENTS_6)]),
            ):
                for address in addresses:
                    # Without "nodad" an IPv6 address is of no use for the first second.
                    ip("-n", name, "address", "add", address, "dev", "cable", *(["nodad"] if ":" in address else []))
                ip("-n", name, "link", "set", "cable", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        for name in (self.here, self.there):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=10)

    @property
    def node_command(self) -> list[str]:
        """What starts ``braidmq`` in ``here``."""
        return ["ip", "netns", "exec", self.here, *COMMAND]

    def from_there(self, work: Callable[[], Result]) -> Result:
        """What the work gives, with all sockets that it makes in ``there``."""
        return self._within(self.there, work)

    def from_here(self, work: Callable[[], Result]) -> Result:
        """The same in ``here``."""
        return self._within(self.here, work)

    def _within(self, name: str, work: Callable[[], Result]) -> Result:
        results: list[Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                with open(f"/var/run/netns/{name}", "rb") as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), f"cannot enter {name}")
                results.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]
