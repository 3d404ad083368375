"""``braidmq start``: run a node until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from braidmq.base import logs
from braidmq.base.config import sources as config
from braidmq.base.config.addresses import Address
from braidmq.base.errors import ConfigError

if TYPE_CHECKING:
    from braidmq.node import Node

log = logging.getLogger("braidmq.node")

# Thresholds of the garbage collector. Young objects are collected 1,000 and 10,000 at a time, which takes at most 2 ms; larger
# steps would pause every client noticeably. A full collection runs only after ten million new objects: each client has some
# twenty long-lived objects, scanning those of a large fleet takes tenths of a second, and ended clients leave no cycles.
_GC_THRESHOLDS = (1000, 10, 1000)


@click.command("start")
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="The configuration file.  [default: use the defaults]"
)
@click.option("--hints", is_flag=True, help="Print commands to try the node once it has started.")
def start(file: Path | None, hints: bool) -> None:
    """Run a node. SIGTERM or Ctrl-C stop it, SIGHUP makes it read its configuration and files again."""
    loaded = config.load(file)
    settings = loaded.settings
    logs.set_up(settings.log.level, settings.log.format, settings.log.lines_per_s_max)
    try:
        import uvloop
    except ImportError:  # not available on every platform; asyncio's own loop does the same, slower
        log.warning("uvloop is not installed: the node runs on asyncio's own event loop, several times slower")
        asyncio.run(_serve(loaded, file, hints))
    else:
        uvloop.run(_serve(loaded, file, hints))


async def _serve(loaded: config.Config, file: Path | None, hints: bool) -> None:
    from braidmq.node import Node

    node = Node(loaded)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, over.set)
    hangup = asyncio.Event()
    # Installed before the node serves: by default, SIGHUP ends the process.
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    await node.start()
    # Restored state is long-lived: scanning 100,000 sessions for garbage would stop everything for 0.2 s each time.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    reloading = loop.create_task(_reload_upon(hangup, node, file))
    if hints:
        click.echo(_hints(node.addresses, node.api_address, node.settings.history.bind if node.history else ""))
    await over.wait()
    log.info("stopping")
    reloading.cancel()
    await node.stop()


async def _reload_upon(hangup: asyncio.Event, node: Node, file: Path | None) -> None:
    """Run reloads one after the other, so that the last one read takes effect."""
    while True:
        await hangup.wait()
        hangup.clear()
        await _reload(node, file)


async def _reload(node: Node, file: Path | None) -> None:
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
