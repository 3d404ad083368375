"""``braidmq pub``: publish messages, with the options of ``mosquitto_pub``."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import click

from braidmq.base.errors import ProtocolViolation
from braidmq.cli.errors import CommandFailed
from braidmq.cli.messages.options import ConnectionOptions, connection_options, read_connection
from braidmq.cli.messages.packet_log import packet_log
from braidmq.cli.messages.property_option import CommandWithProperties
from braidmq.client import connection as client
from braidmq.client.errors import EXIT_TOO_LARGE, ClientError, reason_in_words
from braidmq.mqtt.packets import Publish
from braidmq.mqtt.reasons import FAILURE
from braidmq.mqtt.topics import check_topic_name

_PAYLOAD_BYTES_MAX: Final = 268_435_455
_CHUNK_BYTES: Final = 64 * 1024


@click.command("pub", cls=CommandWithProperties)
@click.option("-t", "--topic", help="Topic to publish to.")
@click.option("-m", "--message", help="The message.")
@click.option("-f", "--file", type=click.Path(dir_okay=False), help="Send the content of a file as one message.")
@click.option("-s", "--stdin-file", "whole_stdin", is_flag=True, help="Send all of standard input as one message.")
@click.option("-l", "--stdin-line", "stdin_lines", is_flag=True, help="Send each line of standard input as a message.")
@click.option("-n", "--null-message", "empty", is_flag=True, help="Send an empty message; with -r it clears a retained one.")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True, help="Quality of service.")
@click.option("-r", "--retain", is_flag=True, help="Publish a retained message.")
@click.option("--repeat", type=click.IntRange(1), default=1, help="Number of times to publish.")
@click.option("--repeat-delay", type=click.FloatRange(0), default=0.0, help="Seconds between repeats.")
@connection_options
def pub(**given: Any) -> int:
    """Publish messages to an MQTT server.

    \b
      braidmq pub -t room/temperature -m 21.5
      braidmq pub -L mqtts://broker.example/room/temperature -m 21.5 -q 1 -r
    """
    sources = [name for name in ("message", "file", "whole_stdin", "stdin_lines", "empty") if given[name] not in (None, False)]
    if len(sources) != 1:
        raise click.UsageError("give exactly one of -m, -f, -l, -n and -s")
    connection = read_connection(given, "braidmq_pub_")
    topic = given["topic"] or connection.url_topic
    if not topic:
        raise click.UsageError("give a topic, with -t or in the URL")
    try:
        check_topic_name(topic)
    except ProtocolViolation as violation:
        raise CommandFailed(f"-t {topic!r}: {violation.detail}") from None
    template = Publish(topic, b"", given["qos"], given["retain"], properties=connection.properties_of("publish"))
    if not given["stdin_lines"]:
        template.payload = _payload(given)
    try:
        return asyncio.run(_publish(connection, template, given))
    except ClientError as failure:
        if connection.quiet:
            return failure.exit_code
        raise


def _payload(given: dict[str, Any]) -> bytes:
    if given["message"] is not None:
        return given["message"].encode("utf-8", "surrogateescape")  # type: ignore[no-any-return]
    if given["file"]:
        return _checked(Path(given["file"]).read_bytes())
    return _checked(sys.stdin.buffer.read()) if given["whole_stdin"] else b""


def _checked(payload: bytes) -> bytes:
    _check_size(len(payload))
    return payload


def _check_size(size: int) -> None:
    if size > _PAYLOAD_BYTES_MAX:
        raise CommandFailed(f"a message cannot be larger than {_PAYLOAD_BYTES_MAX} bytes", EXIT_TOO_LARGE)


async def _publish(connection: ConnectionOptions, template: Publish, given: dict[str, Any]) -> int:
    debug = packet_log(connection.login.client_id) if connection.debug else None
    speaker = await client.connect(connection.endpoint, connection.login, on_packet=debug, inflight_max=connection.inflight_max)
    outcome = _Outcome(quiet=connection.quiet)
    try:
        if given["stdin_lines"]:
            async for line in _lines():
                outcome.watch(await speaker.publish(Publish(template.topic, line, template.qos, template.retain,
                                                            properties=template.properties)))  # fmt: skip
        else:
            for turn in range(given["repeat"]):
                if turn and given["repeat_delay"]:
                    await _sleep_while_alive(speaker, given["repeat_delay"])
                outcome.watch(await speaker.publish(template))
        await outcome.settled()
        await speaker.disconnect(connection.properties_of("disconnect"))
    finally:
        speaker.abort()
    return outcome.exit_code


class _Outcome:
    """Tracks acknowledgements of messages in flight and remembers the last rejection."""

    def __init__(self, *, quiet: bool) -> None:
        self.exit_code = 0
        self._quiet = quiet
        self._sent = 0
        self._waiting: set[asyncio.Future[int]] = set()

    def watch(self, acknowledged: asyncio.Future[int]) -> None:
        """Count a message that was sent."""
        self._sent += 1
        number = self._sent
        self._waiting.add(acknowledged)
        acknowledged.add_done_callback(lambda done: self._done(done, number))

    def _done(self, acknowledged: asyncio.Future[int], number: int) -> None:
        if acknowledged.cancelled() or acknowledged.exception() is not None:
            return  # the connection is lost; `settled` reports it
        self._waiting.discard(acknowledged)
        reason = acknowledged.result()
        if reason >= FAILURE:
            self.exit_code = reason
            if not self._quiet:
                click.echo(f"braidmq pub: message {number} was rejected: {reason_in_words(reason)}", err=True)

    async def settled(self) -> None:
        """Return when everything is acknowledged; raises the error that ended the connection."""
        while self._waiting:
            await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
            for done in [each for each in self._waiting if each.done()]:
                done.result()
                self._waiting.discard(done)


async def _sleep_while_alive(speaker: client.MqttClient, delay_s: float) -> None:
    await asyncio.wait([speaker.ended], timeout=delay_s)
    if speaker.ended.done():
        speaker.ended.result()


async def _lines() -> AsyncIterator[bytes]:
    """Lines of standard input without line ends. A daemon thread reads them, since files cannot be awaited."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(maxsize=4)

    def read() -> None:
        chunk = b"."
        while chunk:
            chunk = os.read(0, _CHUNK_BYTES)
            try:
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()
            except RuntimeError:
                return  # the loop is closed

    threading.Thread(target=read, name="stdin", daemon=True).start()
    unfinished: list[bytes] = []
    while chunk := await chunks.get():
        head, newline, rest = chunk.partition(b"\n")
        unfinished.append(head)
        if not newline:
            _check_size(sum(map(len, unfinished)))
            continue
        yield b"".join(unfinished)
        *lines, last = rest.split(b"\n")
        for line in lines:
            yield line
        unfinished = [last]
    if any(unfinished):
        yield b"".join(unfinished)
