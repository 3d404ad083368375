"""The client on asyncio, packet by packet: what it sends, what it makes of answers, and how it ends. Without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from braidmq.client import connection
from braidmq.client.connection import Lost, MqttClient
from braidmq.client.errors import EXIT_KEEP_ALIVE, EXIT_NOT_SUPPORTED, EXIT_TOO_LARGE, ClientError
from braidmq.mqtt.codec import FrameSplitter, decode, encode
from braidmq.mqtt.packets import (
    MQTT5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscribeOption,
)
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason


class Pipe(asyncio.Transport):
    """Keeps what the client writes."""

    def __init__(self, client: MqttClient) -> None:
        super().__init__()
        self.is_aborted = False
        self._client = client
        self._splitter = FrameSplitter(1 << 20)
        self._packets: list[Packet] = []

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._packets += [decode(first, body, MQTT5) for first, body in self._splitter.feed(bytes(data))]

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self._client.connection_lost, None)

    def take(self) -> list[Packet]:
        """The packets since the last call."""
        taken, self._packets = self._packets, []
        return taken


class Ends:
    """A client and the server's end of its connection."""

    def __init__(self, keep_alive: int = 0, inflight_max: int = 20) -> None:
        self.messages: list[Publish] = []
        login = Connect("c", MQTT5, keep_alive=keep_alive)
        self.client = MqttClient(login, inflight_max=inflight_max, on_message=self.messages.append, on_packet=None)
        self.pipe = Pipe(self.client)
        self.client.connection_made(self.pipe)

    def answer(self, *packets: Packet) -> None:
        """Let the server send packets."""
        self.client.data_received(b"".join(encode(packet, MQTT5) for packet in packets))

    async def log_in(self, connack: Connack | None = None) -> None:
        """CONNECT and its answer."""
        login = asyncio.create_task(self.client.log_in())
        await asyncio.sleep(0)
        self.answer(connack or Connack())
        await login
        assert isinstance(self.pipe.take()[0], Connect)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(bounded())


def test_a_refused_login_ends_the_connection_with_the_servers_reason() -> None:
    async def scenario() -> None:
        ends = Ends()

        with pytest.raises(ClientError) as refused:
            await ends.log_in(Connack(Reason.NOT_AUTHORIZED))

        assert refused.value.exit_code == Reason.NOT_AUTHORIZED
        assert ends.pipe.is_aborted

    run(scenario)


def test_a_publish_of_each_qos_is_settled_by_its_own_acknowledgement() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()

        at_most, at_least, exactly = [await ends.client.publish(Publish("t", b"", qos)) for qos in (0, 1, 2)]
        assert [packet.packet_id for packet in ends.pipe.take() if isinstance(packet, Publish)] == [None, 1, 2]
        assert (at_most.result(), at_least.done(), exactly.done()) == (0, False, False)

        ends.answer(Puback(1, Reason.NO_MATCHING_SUBSCRIBERS), Pubrec(2))
        assert ends.pipe.take() == [Pubrel(2)]
        assert (at_least.result(), exactly.done()) == (Reason.NO_MATCHING_SUBSCRIBERS, False)

        ends.answer(Pubcomp(2))
        assert exactly.result() == 0

    run(scenario)


def test_a_pubrec_that_refuses_a_message_settles_it() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()
        exactly = await ends.client.publish(Publish("t", b"", 2))
        ends.pipe.take()

        ends.answer(Pubrec(1, Reason.QUOTA_EXCEEDED))

        assert exactly.result() == Reason.QUOTA_EXCEEDED
        assert ends.pipe.take() == []

    run(scenario)


@pytest.mark.parametrize(("inflight_max", "receive_maximum"), [(2, None), (20, 2)])
def test_publish_waits_while_the_window_of_client_or_server_is_full(inflight_max: int, receive_maximum: int | None) -> None:
    async def scenario() -> None:
        ends = Ends(inflight_max=inflight_max)
        await ends.log_in(Connack(properties=Properties(receive_maximum=receive_maximum)))
        for _ in range(2):
            await ends.client.publish(Publish("t", b"", 1))
        third = asyncio.create_task(ends.client.publish(Publish("t", b"", 1)))
        await asyncio.sleep(0)
        assert len(ends.pipe.take()) == 2

        ends.answer(Puback(1))
        await third

        assert len(ends.pipe.take()) == 1

    run(scenario)


def test_a_packet_id_in_use_is_not_given_to_another_packet() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()
        ends.client._next_id = 65535
        await ends.client.publish(Publish("t", b"", 1))
        ends.client._next_id = 65535
        await ends.client.publish(Publish("t", b"", 1))

        assert [packet.packet_id for packet in ends.pipe.take() if isinstance(packet, Publish)] == [65535, 1]

    run(scenario)


def test_a_qos_2_message_that_is_sent_again_reaches_the_caller_once_until_it_is_released() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()
        message = Publish("t", b"1", 2, packet_id=7)

        ends.answer(message, Publish("t", b"1", 2, dup=True, packet_id=7), Pubrel(7), message)

        assert [each.payload for each in ends.messages] == [b"1", b"1"]
        assert ends.pipe.take() == [Pubrec(7), Pubrec(7), Pubcomp(7), Pubrec(7)]

    run(scenario)


def test_a_topic_alias_stands_for_the_topic_it_was_last_given() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()
        alias = Properties(topic_alias=3)

        ends.answer(*(Publish(topic, b"", properties=alias) for topic in ("a", "", "b", "")))

        assert [message.topic for message in ends.messages] == ["a", "a", "b", "b"]

    run(scenario)


def test_subscribe_gives_the_reason_for_each_filter() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()
        asked = asyncio.create_task(ends.client.subscribe([SubscribeOption("a", 1), SubscribeOption("b", 1)]))
        await asyncio.sleep(0)
        (subscribe,) = ends.pipe.take()
        assert isinstance(subscribe, Subscribe)

        ends.answer(Suback(subscribe.packet_id, [1, Reason.NOT_AUTHORIZED]))

        assert await asked == [1, Reason.NOT_AUTHORIZED]

    run(scenario)


@pytest.mark.parametrize(
    ("limit", "message", "exit_code"),
    [
        (Properties(maximum_qos=1), Publish("t", b"", 2), 24),
        (Properties(retain_available=False), Publish("t", b"", 0, True), EXIT_NOT_SUPPORTED),
        (Properties(maximum_packet_size=20), Publish("t", bytes(20), 1), EXIT_TOO_LARGE),
    ],
    ids=["QoS", "retain", "size"],
)
def test_a_message_beyond_the_servers_limits_is_not_sent(limit: Properties, message: Publish, exit_code: int) -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in(Connack(properties=limit))

        with pytest.raises(ClientError) as refused:
            await ends.client.publish(message)

        assert refused.value.exit_code == exit_code
        assert ends.pipe.take() == []

    run(scenario)


@pytest.mark.parametrize(
    ("sent", "words", "exit_code"),
    [
        (Disconnect(Reason.SERVER_BUSY, Properties(reason_string="later")), 'server busy (0x89); it says "later"', 0x89),
        (Auth(Reason.CONTINUE_AUTHENTICATION, Properties(authentication_method="x")), "AUTH, which this client cannot", 10),
        (Pingreq(), "PINGREQ, which this client cannot answer", EXIT_NOT_SUPPORTED),
    ],
    ids=["DISCONNECT", "AUTH", "PINGREQ"],
)
def test_the_end_of_the_connection_fails_everything_that_still_waits(sent: Packet, words: str, exit_code: int) -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()
        unacknowledged = await ends.client.publish(Publish("t", b"", 1))
        unanswered = asyncio.create_task(ends.client.subscribe([SubscribeOption("a", 1)]))
        await asyncio.sleep(0)

        ends.answer(sent)

        for waiting in (unacknowledged, unanswered, ends.client.ended):
            with pytest.raises(Lost) as lost:
                await waiting
            assert words in str(lost.value)
            assert lost.value.exit_code == exit_code
        with pytest.raises(Lost):
            await ends.client.publish(Publish("t", b""))
        assert ends.pipe.is_aborted

    run(scenario)


def test_bytes_that_break_the_protocol_end_the_connection() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()

        ends.client.data_received(b"\x36\x03\x00\x01t")

        with pytest.raises(Lost, match="violated the protocol"):
            await ends.client.ended

    run(scenario)


def test_a_ping_that_is_not_answered_ends_the_connection() -> None:
    async def scenario() -> None:
        ends = Ends(keep_alive=60)
        await ends.log_in()
        ends.client._keep_alive()
        assert ends.pipe.take() == [Pingreq()]
        ends.answer(Pingresp())
        ends.client._keep_alive()
        assert not ends.client.ended.done()

        ends.client._keep_alive()  # the second PINGREQ has no answer

        with pytest.raises(Lost) as lost:
            await ends.client.ended
        assert lost.value.exit_code == EXIT_KEEP_ALIVE

    run(scenario)


def test_an_answer_that_does_not_come_in_time_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_S", 0.01)

    async def scenario() -> None:
        ends = Ends()

        with pytest.raises(Lost, match="did not answer CONNECT within"):
            await ends.client.log_in()

        assert ends.pipe.is_aborted

    run(scenario)


def test_publish_waits_while_the_server_reads_too_slowly() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()
        ends.client.pause_writing()
        waiting = asyncio.create_task(ends.client.publish(Publish("t", b"")))
        await asyncio.sleep(0)
        assert ends.pipe.take() == []

        ends.client.resume_writing()
        await waiting

        assert len(ends.pipe.take()) == 1

    run(scenario)


def test_disconnect_says_goodbye_and_a_second_one_says_nothing() -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.log_in()

        await ends.client.disconnect()
        await ends.client.disconnect()

        assert ends.pipe.take() == [Disconnect()]
        assert ends.client.ended.result() is None

    run(scenario)
