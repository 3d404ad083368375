"""The etcd of a cluster on this machine."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from braidmq.base.errors import UsageError
from braidmq.base.parent import tied_to_parent
from braidmq.cli.errors import CommandFailed
from braidmq.client.errors import EXIT_FAILED
from braidmq.cluster.corestore.etcd.program import EtcdAddresses, etcd_command, etcd_version, find_etcd

_STOP_S: Final = 10.0


class DevEtcd:
    """Members of etcd; call `start`, then `stop`."""

    def __init__(self, folder: Path, host: str, ports: list[int]) -> None:
        """``ports``: two for each member, for clients and for other members; 0: the system chooses them."""
        self._folder = folder
        chosen = _chosen(host, ports)
        self._members = {
            f"etcd{number}": EtcdAddresses(f"{host}:{next(chosen)}", f"{host}:{next(chosen)}")
            for number in range(1, len(ports) // 2 + 1)
        }
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    @property
    def addresses(self) -> list[str]:
        """Where clients find the members."""
        return [member.clients for member in self._members.values()]

    async def start(self) -> None:
        """Start the processes; cores wait until they answer. Raises UsageError if there is no etcd."""
        if not self._members:
            return
        program = find_etcd()
        if program is None:
            raise UsageError("several cores need etcd, and it is not installed", "install etcd-server, or set ETCD_BIN")
        version = await asyncio.to_thread(etcd_version, program)
        for name in self._members:
            folder = self._folder / name
            await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
            command = etcd_command(program, version, name, folder / "data", self._members)
            output = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                self._processes[name] = await asyncio.create_subprocess_exec(
                    *tied_to_parent(command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # Ctrl-C is for the command, which stops etcd after the nodes
                )
            finally:
                os.close(output)

    async def wait_failed(self) -> None:
        """Wait until a member has ended. Raises CommandFailed."""
        waiting = {asyncio.ensure_future(process.wait()): name for name, process in self._processes.items()}
        if not waiting:
            await asyncio.Event().wait()
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        names = ", ".join(waiting[task] for task in done)
        raise CommandFailed(f"{names} has ended; see log.txt in {self._folder / names}", EXIT_FAILED)

    async def stop(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self._processes.values():
            try:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    def shown(self) -> list[dict[str, str | int]]:
        """What the user is told."""
        return [
            {"name": name, "pid": process.pid, "client": self._members[name].clients} for name, process in self._processes.items()
        ]


def _chosen(host: str, ports: list[int]) -> Iterator[int]:
    """The ports; in place of 0 one that is free now."""
    held: list[socket.socket] = []
    try:
        for port in ports:
            if not port:
                held.append(socket.create_server((host, 0)))
        free = [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
    return iter([port or free.pop() for port in ports])
