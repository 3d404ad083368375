"""``braidmq worker``: a worker of a core, run only by ``braidmq start --workers``. Its standard input is a socket to the core."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from braidmq.base import logs
from braidmq.base.config.settings import Settings
from braidmq.base.config.transfer import decode_config
from braidmq.base.errors import ConfigError, UsageError
from braidmq.base.parent import die_with_parent
from braidmq.cli.serving import run_on_loop, run_until, start_until
from braidmq.cluster.workers import worker_messages
from braidmq.cluster.workers.worker_messages import WorkerFailed, WorkerReady, WorkerReload, WorkerSetup

if TYPE_CHECKING:
    from braidmq.node import Replicant

log = logging.getLogger("braidmq.node")


@click.command("worker", hidden=True)
def worker() -> None:
    """Run a worker. For `braidmq start --workers`, not for users."""
    core = _socket_to_core()
    setup = _read_setup(core)
    die_with_parent(setup.parent_pid)
    _set_up_log(decode_config(setup.config).settings)
    run_on_loop(_serve(core, setup))


def _socket_to_core() -> socket.socket:
    try:
        core = socket.socket(fileno=0)
        core.getpeername()
    except OSError:
        raise UsageError("a worker is started by its core", "use braidmq start --workers N") from None
    return core


def _read_setup(core: socket.socket) -> WorkerSetup:
    with core.makefile("rb") as stream:
        head = stream.read(worker_messages.LENGTH_BYTES)
        data = stream.read(worker_messages.length_of(head))
        if not head or not data:
            raise UsageError("the core ended before this worker began")
    message = worker_messages.to_worker(data)
    if not isinstance(message, WorkerSetup):
        raise UsageError("the core did not begin with the setup of a worker")
    return message


async def _serve(core: socket.socket, setup: WorkerSetup) -> None:
    from braidmq.base.listening.sockets import PortSharing
    from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
    from braidmq.node import Replicant

    config = decode_config(setup.config)
    side = ReplicantSide(
        config.settings, Path(config.settings.node.data_dir), CoreAddress(setup.secret, socket_path=setup.core_socket)
    )
    node = Replicant(config, side, PortSharing.JOIN)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    reader, writer = await asyncio.open_unix_connection(sock=core)
    listening = loop.create_task(_obey(reader, node, over))
    try:
        if not await start_until(node, over):
            return
        writer.write(worker_messages.frame(WorkerReady()))
        await run_until(node, over)
    except ConfigError as problem:
        writer.write(worker_messages.frame(WorkerFailed(problem.key, problem.detail, problem.hint)))
        await writer.drain()
        raise
    finally:
        listening.cancel()


async def _obey(reader: asyncio.StreamReader, node: Replicant, over: asyncio.Event) -> None:
    """Reload when the core says so; the end of the socket is the end of the worker."""
    try:
        while True:
            head = await reader.readexactly(worker_messages.LENGTH_BYTES)
            match worker_messages.to_worker(await reader.readexactly(worker_messages.length_of(head))):
                case WorkerReload(data):
                    config = decode_config(data)
                    _set_up_log(config.settings)
                    await node.reload(config)
                    log.info("reloaded")
    except (asyncio.IncompleteReadError, ConnectionError):
        log.info("the core has ended")
    finally:
        over.set()


def _set_up_log(settings: Settings) -> None:
    logs.set_up(settings.log.level, settings.log.format, settings.log.lines_per_s_max, settings.node.name)
