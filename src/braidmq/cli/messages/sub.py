"""``braidmq sub``: print messages, with the options of ``mosquitto_sub``."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import Any, Final

import click

from braidmq.base.backoff import Backoff
from braidmq.base.errors import ProtocolViolation
from braidmq.cli.errors import EXIT_TIMEOUT, CommandFailed
from braidmq.cli.messages.format import NotJson, Part, compile_format
from braidmq.cli.messages.options import ConnectionOptions, connection_options, read_connection
from braidmq.cli.messages.packet_log import packet_log
from braidmq.cli.messages.property_option import CommandWithProperties
from braidmq.client import connection as client
from braidmq.client.errors import ClientError, reason_in_words
from braidmq.mqtt.packets import MQTT5, Publish, SubscribeOption
from braidmq.mqtt.reasons import FAILURE, Reason
from braidmq.mqtt.topics import check_filter, matches

_RETRY_S: Final = 1.0
_RETRY_S_MAX: Final = 30.0
# Reconnecting after one of these would only cause it again.
_FINAL_REASONS: Final = frozenset(
    (Reason.SESSION_TAKEN_OVER, Reason.ADMINISTRATIVE_ACTION, Reason.BANNED, Reason.NOT_AUTHORIZED, Reason.PROTOCOL_ERROR)
)


@click.command("sub", cls=CommandWithProperties)
@click.option("-t", "--topic", "topics", multiple=True, help="Topic filter to subscribe to; may be repeated.")
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=0, show_default=True, help="Quality of service.")
@click.option("-v", "--verbose", is_flag=True, help="Print the topic before the message.")
@click.option("-F", "--format", "format_", help="Print in this format, such as '%I %t %p'.")
@click.option("-N", "--no-newline", is_flag=True, help="Do not print a newline after each message.")
@click.option("-C", "--count", type=click.IntRange(1), help="Exit after this many messages.")
@click.option("-W", "--timeout", "timeout_s", type=click.FloatRange(0), help="Exit after this many seconds (status 27).")
@click.option("-R", "--no-retained", is_flag=True, help="Do not print retained messages.")
@click.option("--retained-only", is_flag=True, help="Print only retained messages; exit at the first other message.")
@click.option("--remove-retained", is_flag=True, help="Remove each retained message that is received.")
@click.option(
    "-T", "--filter-out", "filters_out", multiple=True, help="Do not print messages whose topic matches; may be repeated."
)
@click.option(
    "-U", "--unsubscribe", "unsubscribes", multiple=True, help="Topic filter to unsubscribe from first; may be repeated."
)
@click.option("-E", "exit_when_subscribed", is_flag=True, help="Exit when the server has acknowledged the subscriptions.")
@connection_options
def sub(**given: Any) -> int:
    """Subscribe to topics and print the messages. Reconnects when the connection is lost.

    \b
      braidmq sub -t 'room/#' -v
      braidmq sub -t '$SYS/#' -F '%I %t %p' -C 10
    """
    connection = read_connection(given, "braidmq_sub_")
    topics = [*given["topics"], *([connection.url_topic] if connection.url_topic else [])]
    if not topics and not given["unsubscribes"]:
        raise click.UsageError("give a topic filter, with -t or in the URL")
    for topic_filter in (*topics, *given["filters_out"], *given["unsubscribes"]):
        try:
            check_filter(topic_filter)
        except ProtocolViolation as violation:
            raise CommandFailed(f"{topic_filter!r}: {violation.detail}") from None
    try:
        return asyncio.run(_Subscriber(connection, topics, given).run())
    except ClientError as failure:
        if connection.quiet:
            return failure.exit_code
        raise


def _output(given: dict[str, Any]) -> Part:
    text = given["format_"]
    if text is None:
        text = "%t %p" if given["verbose"] else "%p"
    return compile_format(text if given["no_newline"] else text + "\\n")


class _Subscriber:
    """Keeps the subscriptions alive and prints messages until an option, a signal or the server ends it."""

    def __init__(self, connection: ConnectionOptions, topics: list[str], given: dict[str, Any]) -> None:
        self._connection = connection
        self._topics = topics
        self._given = given
        self._write = _output(given)
        self._printed = 0
        self._speaker: client.MqttClient | None = None
        self._flush_is_due = False

    async def run(self) -> int:
        """Run until the end; returns the exit status."""
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[int] = self._loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._finish, 0)
        if self._given["timeout_s"] is not None:
            self._loop.call_later(self._given["timeout_s"], self._time_out)
        work = asyncio.ensure_future(self._stay_subscribed())
        try:
            await asyncio.wait([work, self._finished], return_when=asyncio.FIRST_COMPLETED)
            if not self._finished.done():
                return work.result()
            if self._speaker is not None:
                await self._speaker.disconnect(self._connection.properties_of("disconnect"))
            return self._finished.result()
        finally:
            work.cancel()
            await asyncio.wait([work])
            if self._speaker is not None:
                self._speaker.abort()
            if not self._finished.done() or self._finished.exception() is None:
                sys.stdout.buffer.flush()

    async def _stay_subscribed(self) -> int:
        """Connect and subscribe, and reconnect when the connection is lost; only a failure of the first attempt is final."""
        await self._connect()
        while True:
            assert self._speaker is not None
            try:
                await asyncio.shield(self._speaker.ended)
                return 0
            except client.Lost as lost:
                if lost.reason in _FINAL_REASONS:
                    raise
                self._tell(f"{lost}; reconnecting")
            await self._reconnect()

    async def _reconnect(self) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_S_MAX)
        delay_s = backoff.next()
        while True:
            await asyncio.sleep(delay_s)
            try:
                await self._connect()
                return
            except ClientError as failure:
                delay_s = backoff.next()
                self._tell(f"{failure}; next attempt in {delay_s:g} s")

    async def _connect(self) -> None:
        login = self._connection.login
        speaker = await client.connect(
            self._connection.endpoint,
            login,
            on_message=self._receive,
            on_packet=packet_log(login.client_id) if self._connection.debug else None,
            inflight_max=self._connection.inflight_max,
        )
        self._speaker = speaker
        if self._given["unsubscribes"]:
            await speaker.unsubscribe(list(self._given["unsubscribes"]), self._connection.properties_of("unsubscribe"))
        if self._topics:
            options = [SubscribeOption(topic_filter, self._given["qos"]) for topic_filter in self._topics]
            self._check(await speaker.subscribe(options, self._connection.properties_of("subscribe")))
        if self._given["exit_when_subscribed"] or not self._topics:
            self._finish(0)

    def _check(self, reasons: list[int]) -> None:
        refused = [(topic, reason) for topic, reason in zip(self._topics, reasons, strict=True) if reason >= FAILURE]
        words = "; ".join(f"{topic!r}{self._in_words(reason)}" for topic, reason in refused)
        if len(refused) == len(self._topics):
            raise CommandFailed(f"the server rejected the subscription to {words}", refused[-1][1])
        if refused:
            self._tell(f"the server rejected the subscription to {words}")

    def _in_words(self, reason: int) -> str:
        # MQTT 3.1.1 has one code for every failure, which explains nothing.
        return f": {reason_in_words(reason)}" if self._connection.login.version == MQTT5 else ""

    def _receive(self, message: Publish) -> None:
        if self._finished.done():
            return
        if self._given["retained_only"] and not message.retain:
            self._finish(0)
            return
        if any(matches(topic_filter, message.topic) for topic_filter in self._given["filters_out"]):
            return
        if message.retain:
            if self._given["remove_retained"]:
                self._loop.create_task(self._remove(message.topic))
            if self._given["no_retained"]:
                return
        try:
            sys.stdout.buffer.write(self._write(message, time.time_ns()))
        except NotJson as problem:
            self._tell(str(problem))
        except OSError as error:
            self._finished.set_exception(error)
            return
        self._flush_soon()
        self._printed += 1
        if self._printed == self._given["count"]:
            self._finish(0)

    async def _remove(self, topic: str) -> None:
        if self._speaker is not None:
            await self._speaker.publish(Publish(topic, b"", 0, True))

    def _flush_soon(self) -> None:
        """Flush once for all messages that arrived together."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        try:
            sys.stdout.buffer.flush()
        except OSError as error:
            if not self._finished.done():
                self._finished.set_exception(error)

    def _time_out(self) -> None:
        self._tell("timed out")
        self._finish(EXIT_TIMEOUT)

    def _finish(self, exit_code: int) -> None:
        if not self._finished.done():
            self._finished.set_result(exit_code)

    def _tell(self, sentence: str) -> None:
        if not self._connection.quiet:
            click.echo(f"braidmq sub: {sentence}", err=True)
