"""``braidmq bench conn|pub|sub|flow``, with the options of ``emqtt_bench``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
import uvloop

from braidmq.base.errors import ProtocolViolation
from braidmq.cli.bench.frames import HEADER
from braidmq.cli.bench.loads import make_load
from braidmq.cli.bench.plan import BenchPlan, Kind, new_run_id
from braidmq.cli.bench.report import as_json, print_report, show_progress
from braidmq.cli.bench.tally import Tally
from braidmq.cli.errors import CommandFailed
from braidmq.cli.messages.options import bench_connection_options, parse_version, read_endpoint, read_login
from braidmq.client.errors import EXIT_FAILED
from braidmq.mqtt.packets import MQTT5
from braidmq.mqtt.topics import check_filter, check_topic_name

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _optional_truth(*names: str, default: str, help: str) -> Callable[[Decorated], Decorated]:
    """An option in the style of emqtt_bench: ``-r``, ``-r true`` and ``-r false``."""
    return click.option(*names, type=bool, is_flag=False, flag_value="true", default=default, show_default=True, help=help)


_SHARED: Final = (
    click.option("-h", "--host", default="localhost", show_default=True, help="Host, or several separated by commas."),
    click.option("-p", "--port", type=click.IntRange(1, 65535), help="Port.  [default: 1883, 8883 with TLS, 8083 with --ws]"),
    click.option("-V", "--version", callback=parse_version, help="MQTT version: 3, 4 or 5.  [default: 5]"),
    click.option("-c", "--count", type=click.IntRange(1), default=200, show_default=True, help="Number of clients."),
    click.option("-n", "--startnumber", type=click.IntRange(0), default=0, help="Number of the first client."),
    click.option("-R", "--connrate", type=click.FloatRange(0), default=0.0, help="Connections per second; 0: see -i."),
    click.option(
        "-i", "--interval", type=click.FloatRange(0), default=10.0, show_default=True, help="Interval between connects, ms."
    ),
    click.option("-k", "--keepalive", type=click.IntRange(0, 65535), default=300, show_default=True, help="Keep alive, s."),
    _optional_truth("-C", "--clean", default="true", help="Clean start."),
    click.option("-x", "--session-expiry", type=click.IntRange(0, 0xFFFFFFFF), default=0, help="Session expiry, s (MQTT 5)."),
    _optional_truth("-S", "--ssl", default="false", help="Use TLS."),
    click.option("--certfile", default="", hidden=True),
    click.option("--keyfile", default="", hidden=True),
    click.option("--ifaddr", default="", help="Local addresses, separated by commas, used in turn."),
    click.option("--prefix", default="", help="Prefix of the client ids."),
    click.option("--shortids", is_flag=True, help="Build client ids from prefix and number only."),
    click.option("--duration", type=click.FloatRange(0), help="Stop this many seconds after all clients have connected."),
    click.option("--json", "json_wanted", is_flag=True, help="Print the result as JSON instead of a table."),
    click.option("--quiet", is_flag=True, help="Show no progress."),
)
_MESSAGE: Final = (
    click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True, help="Quality of service."),
    click.option("-s", "--size", type=click.IntRange(0, 16 << 20), default=256, show_default=True, help="Payload size, bytes."),
    click.option("-L", "--limit", type=click.IntRange(0), default=0, help="Stop after this many messages in total; 0: never."),
)


def _options(*groups: tuple[Any, ...]) -> Callable[[Decorated], Decorated]:
    def decorate(command: Decorated) -> Decorated:
        command = bench_connection_options(command)
        for option in (option for group in reversed(groups) for option in reversed(group)):
            command = option(command)
        return command

    return decorate


@click.group()
def bench() -> None:
    """Benchmark an MQTT server: connections, messages per second, latency.

    Ctrl-C ends a run with its report. Topics and the user name may contain %i (number), %c (client id) and %u (user name).
    """


@bench.command("conn")
@_options(_SHARED)
def conn(**given: Any) -> int:
    """Connect and keep the connections open."""
    return _run("conn", given)


@bench.command("pub")
@click.option("-t", "--topic", required=True, help="Topic; %i, %c and %u are replaced.")
@click.option("-I", "--interval_of_msg", "--interval-of-msg", "message_gap", type=click.FloatRange(0), default=1000.0,
              show_default=True, help="Interval between the messages of a client, ms; 0: as fast as possible.")  # fmt: skip
@click.option(
    "-F", "--inflight", type=click.IntRange(0), default=1, show_default=True, help="Maximum unacknowledged messages; 0: no limit."
)
@click.option("-m", "--message", help="Payload to send instead of -s bytes; disables the measurement of latency and loss.")
@_optional_truth("-r", "--retain", default="false", help="Publish retained messages.")
@_options(_MESSAGE, _SHARED)
def pub(**given: Any) -> int:
    """Publish at an interval, or as fast as possible."""
    return _run("pub", given)


@bench.command("sub")
@click.option("-t", "--topic", required=True, help="Topic filter; %i, %c and %u are replaced.")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True, help="Quality of service.")
@click.option("-L", "--limit", type=click.IntRange(0), default=0, help="Stop after this many messages in total; 0: never.")
@_options(_SHARED)
def sub(**given: Any) -> int:
    """Subscribe and count; latency and loss are measured for messages of `bench pub`."""
    return _run("sub", given)


@bench.command("flow")
@click.option("-t", "--topic", help="Topic of each publisher; must contain %i.  [default: a unique topic]")
@click.option(
    "-F", "--inflight", type=click.IntRange(1), default=100, show_default=True, help="Messages in flight per publisher."
)
@click.option("--shape", type=click.Choice(["pair", "fanout", "fanin"]), default="pair", show_default=True,
              help="One subscriber per publisher, all to all, or all to one.")  # fmt: skip
@click.option("--subscribers", type=click.IntRange(1), help="Number of subscribers for fanout.  [default: 10]")
@_optional_truth("-r", "--retain", default="false", help="Publish retained messages.")
@_options(_MESSAGE, _SHARED)
def flow(**given: Any) -> int:
    """Publish and subscribe in a closed loop: measures what the server sustains without loss."""
    return _run("flow", given)


def _run(kind: Kind, given: dict[str, Any]) -> int:
    plan = _read_plan(kind, given)
    tally = Tally()
    result = uvloop.run(_measure(plan, tally, given["quiet"]))
    if given["json_wanted"]:
        click.echo(json.dumps(result))
    else:
        print_report(plan, tally, result)
    return EXIT_FAILED if tally.connected < result["clients"] else 0


def _read_plan(kind: Kind, given: dict[str, Any]) -> BenchPlan:
    run_id = new_run_id()
    hosts = tuple(host.strip() for host in given["host"].split(",") if host.strip())
    if not hosts:
        raise click.UsageError("-h: no host given")
    given = {**given, "tls_wanted": given["tls_wanted"] or given["ssl"], "unix_path": "", "bind_address": ""}
    given["cert"], given["key"] = given["cert"] or given["certfile"], given["key"] or given["keyfile"]
    user_name, password = read_login(given)
    topic = given.get("topic") or (f"bench/{run_id}/%i" if kind == "flow" else "")
    message = given.get("message")
    if kind == "flow" and given["size"] < HEADER.size:
        raise click.UsageError(f"flow needs payloads of at least {HEADER.size} bytes for the timestamp and sequence number")
    plan = BenchPlan(
        kind=kind,
        endpoint=read_endpoint({**given, "host": hosts[0]}),
        hosts=hosts,
        local_addresses=tuple(address for address in given["ifaddr"].split(",") if address),
        version=given["version"] or MQTT5,
        clients=given["count"],
        first_number=given["startnumber"],
        connect_gap_s=1 / given["connrate"] if given["connrate"] else given["interval"] / 1000,
        keep_alive=given["keepalive"],
        clean_start=given["clean"],
        session_expiry=given["session_expiry"],
        user_name=user_name,
        password=password,
        topic=topic,
        qos=given.get("qos", 0),
        retain=given.get("retain", False),
        size=given.get("size", 0),
        message=None if message is None else message.encode("utf-8", "surrogateescape"),
        message_gap_s=given.get("message_gap", 0.0) / 1000,
        limit=given.get("limit", 0),
        inflight=given.get("inflight", 0),
        shape=given.get("shape", "pair"),
        subscribers=given.get("subscribers") or 0,
        duration_s=given["duration"],
        prefix=given["prefix"],
        short_ids=given["shortids"],
        run_id=run_id,
    )
    _check_topic(plan)
    return plan


def _check_topic(plan: BenchPlan) -> None:
    if plan.kind == "conn":
        return
    check = check_filter if plan.kind == "sub" else check_topic_name
    try:
        check(plan.topic_of(plan.kind, plan.first_number))
    except ProtocolViolation as violation:
        raise CommandFailed(f"-t {plan.topic!r}: {violation.detail}") from None


async def _measure(plan: BenchPlan, tally: Tally, quiet: bool) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    load = make_load(plan, tally, stop)
    background: list[asyncio.Task[None]] = [loop.create_task(load.fleet.stay_alive())]
    if not quiet:
        background.append(loop.create_task(show_progress(plan, tally, load.fleet)))
    try:
        began = time.monotonic()
        await load.prepare()
        connect_s = time.monotonic() - began
        gc.freeze()  # the collector need not scan thousands of connections repeatedly
        if plan.duration_s is not None:
            loop.call_later(plan.duration_s, stop.set)
        began = time.monotonic()
        await load.run()
        measured_s = time.monotonic() - began
    finally:
        for task in background:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await load.fleet.let_go()
    return as_json(plan, tally, load.fleet.wanted, connect_s, measured_s)
