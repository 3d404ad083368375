"""Hooks that raise, return invalid results or hang."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from braidmq.access.contract import Credentials, Verdict
from braidmq.broker.messages.hooks import Client, Hook
from braidmq.lane.path.message import Message
from braidmq.mqtt.packets import Pingreq, Pingresp, Publish
from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import unique
from tests.support.stage import Stage

Start = Callable[..., Stage]

FAULTS = [RuntimeError, SystemExit, asyncio.CancelledError]


class Faulty(Hook):
    """Raises whatever it is told to, wherever it is asked, for clients called so and topics below ``faulty/``."""

    topic_filter = "faulty/#"

    def __init__(self, fault: type[BaseException], method: str) -> None:
        self._fault = fault
        self._method = method

    def _maybe_raise(self, method: str) -> None:
        if method == self._method:
            raise self._fault("hook")

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """Raise, for its clients."""
        if credentials.client_id.startswith("faulty"):
            self._maybe_raise("authenticate")
        return None

    def connect(self, client: Client) -> int:
        """Raise, for its clients."""
        if client.client_id.startswith("faulty"):
            self._maybe_raise("connect")
        return 0

    def publish(self, message: Message, client: Client | None) -> Message | None:
        """Raise."""
        self._maybe_raise("publish")
        return message

    def deliver(self, message: Message, client_id: str) -> Message | None:
        """Raise."""
        self._maybe_raise("deliver")
        return message

    def disconnect(self, client: Client, reason: int) -> None:
        """Raise."""
        self._maybe_raise("disconnect")

    def session_created(self, client_id: str) -> None:
        """Raise."""
        self._maybe_raise("session_created")


@pytest.mark.row(63)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["authenticate", "connect"])
def test_a_login_hook_that_raises_rejects_clients_and_the_node_keeps_running(
    start: Start, fault: type[BaseException], method: str
) -> None:
    stage = start()
    stage.look(lambda inside: inside.hooks.add(Faulty(fault, method)))

    refused = stage.open()
    refused.send_request(client_id=unique("faulty"))

    refused.expect_refusal(Reason.SERVER_UNAVAILABLE if method == "authenticate" else Reason.UNSPECIFIED_ERROR)
    stage.connect("other").ping()
    stage.errors.take()


@pytest.mark.row(63)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["publish", "deliver"])
def test_a_message_hook_that_raises_drops_the_message_and_the_node_keeps_running(
    start: Start, fault: type[BaseException], method: str
) -> None:
    stage = start()
    stage.look(lambda inside: inside.hooks.add(Faulty(fault, method)))
    listener, publisher = stage.connect(), stage.connect()
    listener.subscribe("#", qos=1)

    publisher.publish("faulty/t", b"x", 1)
    publisher.publish("t", b"y", 1)

    assert listener.receive_publish().payload == b"y"
    assert stage.look(lambda inside: inside.hooks.failures) == 1
    stage.errors.take()


@pytest.mark.row(63)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["disconnect", "session_created"])
def test_an_event_hook_that_raises_is_ignored(start: Start, fault: type[BaseException], method: str) -> None:
    stage, hook = start(), Faulty(fault, method)
    stage.look(lambda inside: inside.hooks.add(hook))

    stage.connect().disconnect()

    stage.connect().ping()
    assert stage.look(lambda inside: inside.hooks.failures) >= 1
    stage.look(lambda inside: inside.hooks.remove(hook))
    stage.errors.take()


@pytest.mark.row(63)
@pytest.mark.parametrize("answer", [None, "0", [], 0.0, b""], ids=repr)
def test_a_connect_hook_that_returns_no_reason_code_rejects_clients(start: Start, answer: object) -> None:
    class Confused(Hook):
        def connect(self, client: Client) -> int:
            return answer  # type: ignore[return-value]

    stage = start()
    stage.look(lambda inside: inside.hooks.add(Confused()))

    refused = stage.open()
    refused.send_request()

    refused.expect_refusal(Reason.UNSPECIFIED_ERROR)
    assert "which is not a reason code; the client is rejected" in stage.errors.take()


class Stuck(Hook):
    """Does not return from ``publish`` before the log has said so."""

    topic_filter = "stuck/#"

    def __init__(self) -> None:
        self.is_told = threading.Event()
        self.was_told = False

    def publish(self, message: Message, client: Client | None) -> Message | None:
        """Wait."""
        self.was_told = self.is_told.wait(30)
        return message


class Listening(logging.Handler):
    """Lets the hook go when the log has named it."""

    def __init__(self, hook: Stuck) -> None:
        super().__init__()
        self._hook = hook

    def emit(self, record: logging.LogRecord) -> None:
        """Look for the line."""
        line = record.getMessage()
        if "the event loop has been busy for" in line and "publish (" in line and __file__ in line:
            self._hook.is_told.set()


@pytest.mark.row(63)
def test_a_hook_that_hangs_is_named_in_the_log_and_no_client_is_disconnected(start: Start) -> None:
    stage, hook, topic = start(), Stuck(), unique("t/")
    stage.look(lambda inside: inside.hooks.add(hook))
    client, publisher = stage.connect(keep_alive=1), stage.connect()
    client.subscribe(topic)
    listening = Listening(hook)
    logging.getLogger("braidmq").addHandler(listening)
    try:
        publisher.send(Publish("stuck/t", b"x"))
        while not hook.is_told.wait(0.2):
            client.send(Pingreq())

        publisher.publish(topic, b"still there")
        while not isinstance(packet := client.receive_any(), Publish):
            assert isinstance(packet, Pingresp)
    finally:
        logging.getLogger("braidmq").removeHandler(listening)

    assert hook.was_told
    assert packet.payload == b"still there"
    assert stage.look(lambda inside: inside.statistics.keep_alive_timeouts) == 0
    stage.errors.take()
