"""Machines at one switch, each a network namespace, with a network that loses what it is told to lose.

Packets from one machine to another are lost by sending them to an Ethernet address that nobody has: neither side is told, and the
other direction works.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterable
from types import TracebackType

from tests.support.network import ip

_NOWHERE = "02:00:00:00:00:ff"
_numbers = itertools.count(1)


class Machines:
    """Machines with the numbers from 1 on; this process reaches all of them. A context manager; leaving it removes them."""

    def __init__(self, count: int) -> None:
        self._stem = f"bmq{os.getpid() % 10000}m{next(_numbers)}"
        self._net = f"10.78.{os.getpid() % 250}"
        self._switch = f"{self._stem}s"
        self.numbers = range(1, count + 1)

    def address(self, machine: int) -> str:
        """The IP address of a machine."""
        return f"{self._net}.{machine}"

    def within(self, machine: int) -> list[str]:
        """What runs a command there."""
        return ["ip", "netns", "exec", self._name(machine)]

    def _name(self, machine: int) -> str:
        return f"{self._stem}n{machine}"

    def __enter__(self) -> Machines:
        try:
            ip("netns", "add", self._switch)
            ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            ip("-n", self._switch, "link", "set", "switch", "up")
            for machine in self.numbers:
                name = self._name(machine)
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
                plug = ["peer", "name", f"p{machine}", "netns", self._switch]
                ip("-n", name, "link", "add", "cable", "address", _mac(machine), "type", "veth", *plug)
                self._plug_in(f"p{machine}")
                ip("-n", name, "address", "add", f"{self.address(machine)}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
            ip("link", "add", self._switch, "type", "veth", "peer", "name", "p0", "netns", self._switch)
            self._plug_in("p0")
            ip("address", "add", f"{self._net}.254/24", "dev", self._switch)
            ip("link", "set", self._switch, "up")
            self.heal()
        except BaseException:
            self._remove()
            raise
        return self

    def _plug_in(self, cable: str) -> None:
        ip("-n", self._switch, "link", "set", cable, "master", "switch")
        ip("-n", self._switch, "link", "set", cable, "up")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        for words in (["link", "delete", self._switch], *(["netns", "delete", self._name(each)] for each in self.numbers)):
            subprocess.run(["ip", *words], check=False, capture_output=True, timeout=10)
        subprocess.run(["ip", "netns", "delete", self._switch], check=False, capture_output=True, timeout=10)

    # The network

    def lose(self, sender: int, receiver: int) -> None:
        """Lose what one machine sends to another one; the answers arrive."""
        self._send_to(sender, receiver, _NOWHERE)

    def part(self, *sides: Iterable[int]) -> None:
        """Lose everything between machines of different sides."""
        for here, there in itertools.permutations([list(side) for side in sides], 2):
            for sender, receiver in itertools.product(here, there):
                self.lose(sender, receiver)

    def heal(self) -> None:
        """Lose nothing any more."""
        for sender, receiver in itertools.permutations(self.numbers, 2):
            self._send_to(sender, receiver, _mac(receiver))

    def _send_to(self, sender: int, receiver: int, mac: str) -> None:
        to = [self.address(receiver), "lladdr", mac, "dev", "cable", "nud", "permanent"]
        ip("-n", self._name(sender), "neighbor", "replace", *to)


def _mac(machine: int) -> str:
    return f"02:00:00:00:00:{machine:02x}"
