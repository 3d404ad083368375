"""``braidmq start``: run a node until it is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from braidmq.base import logs
from braidmq.base.config import sources as config
from braidmq.base.config.addresses import Address
from braidmq.base.errors import ConfigError, Unavailable
from braidmq.base.parent import die_with_parent
from braidmq.cli.serving import free_stopped, run_on_loop, run_to_end, start_until

if TYPE_CHECKING:
    from braidmq.node import Node, Replicant, WorkerPlan

log = logging.getLogger("braidmq.node")


@click.command("start")
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="The configuration file.  [default: use the defaults]"
)
@click.option("--hints", is_flag=True, help="Print commands to try the node once it has started.")
@click.option(
    "--workers",
    metavar="N|auto",
    help="Start N more processes that serve clients; auto: one fewer than the machine has processors, at least one.",
)
@click.option("--no-core-listeners", is_flag=True, help="Leave all clients to the workers.")
@click.option("--ready-fd", type=int, help="Write the ports to this descriptor once the node is ready.", hidden=True)
@click.option("--child-of", type=int, help="End with this process, the parent.", hidden=True)
def start(
    file: Path | None,
    hints: bool,
    workers: str | None,
    no_core_listeners: bool,
    ready_fd: int | None,
    child_of: int | None,
) -> None:
    """Run a node. SIGTERM or Ctrl-C stops it; SIGHUP makes it reread its configuration and files."""
    if child_of is not None:
        die_with_parent(child_of)
    loaded = config.load(file)
    settings = loaded.settings
    logs.set_up(settings.log.level, settings.log.format, settings.log.lines_per_s_max)
    plan = _plan(workers, no_core_listeners)
    run_on_loop(_serve(make_node(loaded, plan), plan, file, hints, ready_fd))


def make_node(loaded: config.Config, plan: WorkerPlan | None = None) -> Node | Replicant:
    """A node of the role that its configuration names; not started. Raises ConfigError."""
    from braidmq.cluster.remote.replicant_side import CoreAddress, ReplicantSide
    from braidmq.node import Node, Replicant

    settings = loaded.settings
    if settings.node.role == "core":
        return Node(loaded, plan)
    if plan is not None:
        raise ConfigError("node.role", "a replicant has no workers", 'start several replicants, or set node.role = "core"')
    core = CoreAddress(settings.cluster.secret.encode(), addresses=settings.cluster.core_nodes)
    return Replicant(loaded, ReplicantSide(settings, Path(settings.node.data_dir), core))


def _plan(workers: str | None, no_core_listeners: bool) -> WorkerPlan | None:
    from braidmq.cluster.workers.workers import WORKERS_MAX, automatic_count
    from braidmq.node import WorkerPlan

    if workers is None:
        if no_core_listeners:
            raise click.UsageError("--no-core-listeners needs --workers")
        return None
    if workers == "auto":
        return WorkerPlan(automatic_count(), core_listens=not no_core_listeners)
    if not (workers.isascii() and workers.isdecimal() and 1 <= int(workers) <= WORKERS_MAX):
        raise click.UsageError(f"--workers must be a number from 1 to {WORKERS_MAX} or auto, not {workers!r}")
    return WorkerPlan(int(workers), core_listens=not no_core_listeners)


async def _serve(node: Node | Replicant, plan: WorkerPlan | None, file: Path | None, hints: bool, ready_fd: int | None) -> None:
    """Run the node, and again as a new member each time that its cluster has declared it dead. Raises Unavailable."""
    from braidmq.cluster.membership.members import MAY_RETURN

    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, over.set)
    hangup = asyncio.Event()
    # Installed before the node serves: by default, SIGHUP ends the process.
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    while await start_until(node, over):
        reloading = loop.create_task(_reload_upon(hangup, node, file))
        if ready_fd is not None:
            _report_ports(node, ready_fd)
            ready_fd = None
        if hints:
            click.echo(_hints(node.addresses, node.api_address, node.history_bind))
        bound = _bound(node)
        try:
            reason = await run_to_end(node, over)
        finally:
            reloading.cancel()
        if not reason:
            return
        if reason not in MAY_RETURN:
            raise Unavailable(reason)
        log.warning("%s: its clients were disconnected, and it starts as a new member", reason)
        node = make_node(bound, plan)
        free_stopped()


def _bound(node: Node | Replicant) -> config.Config:
    """The node's configuration with the ports that the system has chosen, so that clients find it again."""
    from braidmq.cluster.workers.worker_settings import bound_listeners

    settings, replace = node.settings, msgspec.structs.replace
    api = replace(settings.api, bind=str(node.api_address)) if node.api_address else settings.api
    cluster = replace(settings.cluster, rpc_bind=str(node.cluster_address)) if node.cluster_address else settings.cluster
    listeners = bound_listeners(settings.listeners, node.addresses)
    return replace(node.config, settings=replace(settings, listeners=listeners, api=api, cluster=cluster))


def _report_ports(node: Node | Replicant, descriptor: int) -> None:
    mqtt = next((port for name, (_, port) in node.addresses.items() if name.startswith("tcp:")), None)
    api, cluster = node.api_address, node.cluster_address
    ports = {"mqtt": mqtt, "api": api.port if api else None, "cluster": cluster.port if cluster else None}
    with open(descriptor, "w") as pipe:
        pipe.write(json.dumps(ports) + "\n")


async def _reload_upon(hangup: asyncio.Event, node: Node | Replicant, file: Path | None) -> None:
    """Run reloads one after the other, so that the last one read takes effect."""
    while True:
        await hangup.wait()
        hangup.clear()
        await _reload(node, file)


async def _reload(node: Node | Replicant, file: Path | None) -> None:
    try:
        loaded = await asyncio.to_thread(config.load, file)
    except ConfigError as problem:
        log.error("the configuration was not reloaded: %s", problem)
        return
    settings = loaded.settings
    logs.set_up(settings.log.level, settings.log.format, settings.log.lines_per_s_max)
    restart = await node.reload(loaded)
    if restart:
        log.warning("these keys take effect after a restart: %s", ", ".join(restart))
    log.info("reloaded")


def _hints(addresses: dict[str, tuple[str, int]], api: Address | None, history: str) -> str:
    lines = ["", "braidmq serves:"]
    lines += [f"  {name:14} {Address(host, port)}" for name, (host, port) in addresses.items()]
    if api is not None:
        lines.append(f"  {'status':14} http://{api}/status  http://{api}/metrics")
    if history:
        lines.append(f"  {'history':14} grpc://{history} (Arrow Flight)")
    tcp = addresses.get("tcp:default")
    if tcp is not None:
        host, port = tcp
        lines += [
            "",
            "Try it:",
            f"  mosquitto_sub -h {host} -p {port} -t 'demo/#' -v &",
            f"  mosquitto_pub -h {host} -p {port} -t demo/hello -m world",
            "",
            "  python3 -c 'import paho.mqtt.publish as p; "
            f'p.single("demo/hello", "from Python", hostname="{host}", port={port})\'',
        ]
    ws = addresses.get("ws:default")
    if ws is not None:
        host, port = ws
        url = f"ws://{host}:{port}/mqtt"
        lines.append(f'  node -e \'require("mqtt").connect("{url}").publish("demo/hello", "from MQTT.js")\'')
    lines += ["", "  .venv/bin/braidmq ctl status      Ctrl-C stops the node.", ""]
    return "\n".join(lines)
