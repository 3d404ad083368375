"""The blocking client, over a pair of sockets."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from braidmq.client.bulk import PINGRESP, PUBACK, PUBREC, Ack, BulkClient, ConnectionLost
from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.packets import MQTT5, Connack, Connect, Disconnect, Packet, Pingresp, Puback, Pubrec
from braidmq.mqtt.properties import Properties
from braidmq.mqtt.reasons import Reason

Ends = tuple[BulkClient, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A client and the server's end of its connection."""
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    yield BulkClient(ours, "mqtt://there"), theirs
    ours.close()
    theirs.close()


def receive(client: BulkClient, server: socket.socket, *packets: Packet) -> None:
    server.sendall(b"".join(encode(packet, MQTT5) for packet in packets))
    client.read(is_waiting=True)


def test_a_login_gives_what_the_server_answers(ends: Ends) -> None:
    client, server = ends
    refusal = Connack(reason=Reason.NOT_AUTHORIZED, properties=Properties(reason_string="no"))
    server.sendall(encode(refusal, MQTT5))

    assert client.log_in(Connect("me", MQTT5, True)) == refusal

    frame = server.recv(1000)
    login = decode(frame[0], frame[2:], MQTT5)
    assert isinstance(login, Connect)
    assert (login.client_id, login.clean_start) == ("me", True)


@pytest.mark.parametrize("answer", [encode(Pingresp(), MQTT5), b"\x20\xff\xff\xff\xff"], ids=["a packet", "no packet"])
def test_an_answer_other_than_connack_is_a_lost_connection(ends: Ends, answer: bytes) -> None:
    client, server = ends
    server.sendall(answer)

    with pytest.raises(ConnectionLost, match="mqtt://there does not speak MQTT 5"):
        client.log_in(Connect("me", MQTT5, True))


def test_acknowledgements_in_order_are_taken_as_a_run(ends: Ends) -> None:
    client, server = ends
    receive(client, server, *(Puback(number) for number in range(1, 9)))

    assert client.take_run(1, 5) == 5
    assert client.take_run(6, 100) == 3
    assert client.take_run(9, 100) == 0


def test_a_run_ends_with_the_last_packet_id(ends: Ends) -> None:
    client, server = ends
    receive(client, server, *(Puback(number, Reason.NO_MATCHING_SUBSCRIBERS) for number in (65_534, 65_535, 1)))

    assert client.take_run(65_534, 100) == 2
    assert client.take_run(1, 100) == 1


def test_acknowledgements_that_are_not_a_run_are_taken_one_by_one(ends: Ends) -> None:
    client, server = ends
    receive(client, server, Pubrec(3), Puback(2, Reason.QUOTA_EXCEEDED), Pingresp())

    assert client.take_run(1, 100) == 0
    assert client.take_acks() == [Ack(PUBREC, 3, 0), Ack(PUBACK, 2, Reason.QUOTA_EXCEEDED), Ack(PINGRESP, 0, 0)]
    assert client.take_acks() == []


def test_a_packet_that_is_cut_waits_for_its_rest(ends: Ends) -> None:
    client, server = ends
    goodbye = Disconnect(Reason.SERVER_SHUTTING_DOWN, Properties(reason_string="x" * 200))
    frame = encode(goodbye, MQTT5)

    for some in (frame[:2], frame[2:50], frame[50:]):
        assert client.take_acks() == []
        assert client.goodbye is None
        server.sendall(some)
        client.read(is_waiting=True)

    assert client.take_acks() == []
    assert client.goodbye == goodbye


def test_packets_received_before_the_end_are_available_after_it(ends: Ends) -> None:
    client, server = ends
    server.sendall(encode(Puback(1), MQTT5))
    server.close()

    with pytest.raises(ConnectionLost):
        client.send(b"x")

    assert client.take_run(1, 10) == 1


def test_the_client_needs_no_event_loop_and_no_websocket() -> None:
    script = "import sys, braidmq.client.bulk; print(*(each for each in ('asyncio', 'picows') if each in sys.modules))"

    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "\n"
