"""Enhanced authentication with SCRAM-SHA-256 (chapters 3.15 and 4.12)."""

from __future__ import annotations

import pytest
import scramp

from braidmq.mqtt.packets import Auth, Connack, Publish
from braidmq.mqtt.properties import Properties
from tests.conformance.statements import shows
from tests.support.clients import raw
from tests.support.clients.wire import Wire, Wires, unique

METHOD = "SCRAM-SHA-256"


class Scram:
    """The client's side of one exchange."""

    def __init__(self, password: str = "lovelace") -> None:
        self._client = scramp.ScramClient([METHOD], "ada", password)

    def first(self) -> bytes:
        """What the client opens with."""
        return str(self._client.get_client_first()).encode()

    def final(self, server_first: Auth) -> bytes:
        """The proof, in answer to the server's challenge."""
        self._client.set_server_first((server_first.properties.authentication_data or b"").decode())
        return str(self._client.get_client_final()).encode()

    def check(self, data: bytes | None) -> None:
        """Raises unless the server has proved that it knows the password too."""
        self._client.set_server_final((data or b"").decode())


def auth(reason: int, data: bytes, method: str = METHOD) -> Auth:
    """An AUTH packet with method and data."""
    return Auth(reason, Properties(authentication_method=method, authentication_data=data))


def begin(connect: Wires, scram: Scram, **fields: object) -> tuple[Wire, Auth]:
    """Send CONNECT and receive the server's challenge."""
    client = connect.open()
    client.send_request(authentication_method=METHOD, authentication_data=scram.first(), **fields)
    return client, client.receive(Auth)


def log_in(connect: Wires, **fields: object) -> Wire:
    """A client that has authenticated itself."""
    scram = Scram()
    client, challenge = begin(connect, scram, **fields)
    client.send(auth(0x18, scram.final(challenge)))
    client.connack = client.receive(Connack)
    assert client.connack.reason == 0
    scram.check(client.connack.properties.authentication_data)
    return client


@shows(
    "5.0: MQTT-4.12.0-2",
    "5.0: MQTT-4.12.0-3",
    "5.0: MQTT-4.12.0-5",
    "5.0: MQTT-3.2.0-1",
    "5.0: MQTT-3.15.2-1",
    "5.0: MQTT-3.1.2-30",
)
def test_a_login_by_scram_is_accepted(connect_guarded: Wires, version: int) -> None:
    scram = Scram()

    client, challenge = begin(connect_guarded, scram)
    client.send(auth(0x18, scram.final(challenge)))
    connack = client.receive(Connack)

    assert challenge.reason == 0x18
    assert challenge.properties.authentication_method == METHOD
    assert connack.reason == 0
    assert connack.properties.authentication_method == METHOD
    scram.check(connack.properties.authentication_data)
    client.subscribe("open/a")


@shows("5.0: MQTT-4.12.0-5", "5.0: MQTT-3.1.2-29")
def test_authentication_method_and_data_are_sent_without_problem_information(connect_guarded: Wires, version: int) -> None:
    client = log_in(connect_guarded, request_problem_information=False)

    assert client.connack.properties.authentication_method == METHOD


@shows("5.0: MQTT-4.12.0-1", "5.0: MQTT-3.2.2-7")
@pytest.mark.parametrize("method", ["GS2-KRB5", "scram-sha-256", "PLAIN"])
def test_an_unknown_method_is_refused(connect_guarded: Wires, version: int, method: str) -> None:
    client = connect_guarded.open()

    client.send_request(authentication_method=method, authentication_data=b"x")

    client.expect_refusal(0x8C)


@shows("5.0: MQTT-4.12.0-4", "5.0: MQTT-3.1.4-2", "5.0: MQTT-3.2.2-7")
def test_a_wrong_proof_is_refused(connect_guarded: Wires, version: int) -> None:
    scram = Scram(password="byron")
    client, challenge = begin(connect_guarded, scram)

    client.send(auth(0x18, scram.final(challenge)))

    told = client.receive(Connack)
    assert told.reason in {0x86, 0x87}
    client.expect_closed()


@shows("5.0: MQTT-4.12.0-4")
def test_an_invalid_first_scram_message_is_rejected(connect_guarded: Wires, version: int) -> None:
    client = connect_guarded.open()

    client.send_request(authentication_method=METHOD, authentication_data=b"\xff\x00 rubbish")

    told = client.receive(Connack)
    assert told.reason >= 0x80
    client.expect_closed()


@shows("5.0: MQTT-4.12.0-3", "5.0: MQTT-3.15.2-1", "5.0: MQTT-3.14.0-1")
@pytest.mark.parametrize("reason", [0x00, 0x19])
def test_a_reply_during_login_must_say_continue(connect_guarded: Wires, version: int, reason: int) -> None:
    scram = Scram()
    client, challenge = begin(connect_guarded, scram)

    client.send(auth(reason, scram.final(challenge)))

    client.expect_refusal(0x82)


@shows("5.0: MQTT-4.12.0-5")
def test_a_reply_with_another_method_is_refused(connect_guarded: Wires, version: int) -> None:
    scram = Scram()
    client, challenge = begin(connect_guarded, scram)

    client.send(auth(0x18, scram.final(challenge), method="SCRAM-SHA-512"))

    told = client.receive(Connack)
    assert told.reason in {0x82, 0x8C}
    client.expect_closed()


@shows("5.0: MQTT-3.1.2-30", "5.0: MQTT-3.14.0-1", "5.0: MQTT-3.2.0-1")
def test_only_auth_is_accepted_before_connack(connect_guarded: Wires, version: int) -> None:
    observer = connect_guarded(user_name="ada", password=b"lovelace")
    topic = "open/" + unique()
    observer.subscribe(topic)
    scram = Scram()
    client, challenge = begin(connect_guarded, scram)

    client.send(Publish(topic, b"too early"), auth(0x18, scram.final(challenge)))

    # A CONNACK may name the error; a DISCONNECT must not come where no CONNACK of success has been.
    assert raw.connack_code(client.read_to_end()) in {None, 0x82}
    observer.expect_silence()


@shows("5.0: MQTT-4.12.0-7", "5.0: MQTT-4.12.0-6")
@pytest.mark.parametrize("reason", [0x18, 0x19])
def test_auth_without_a_method_in_connect_closes_the_connection(connect: Wires, version: int, reason: int) -> None:
    client = connect()

    client.send(auth(reason, Scram().first()))

    client.expect_disconnect(0x82)


@shows("5.0: MQTT-4.12.0-6")
def test_a_password_login_gets_no_authentication_method(connect_guarded: Wires, version: int) -> None:
    client = connect_guarded(user_name="ada", password=b"lovelace")

    assert client.connack.properties.authentication_method is None
    assert client.connack.properties.authentication_data is None
    client.expect_silence()


@shows("5.0: MQTT-4.12.1-1", "5.0: MQTT-4.12.0-5", "5.0: MQTT-3.15.2-1")
def test_a_client_can_authenticate_again(connect_guarded: Wires, version: int) -> None:
    publisher = connect_guarded(user_name="ada", password=b"lovelace")
    client, topic, scram = log_in(connect_guarded), "open/" + unique(), Scram()
    client.subscribe(topic)

    client.send(auth(0x19, scram.first()))
    challenge = client.receive(Auth)
    # The connection is in use all the while.
    publisher.publish(topic, b"meanwhile")
    assert client.receive(Publish).payload == b"meanwhile"
    client.send(auth(0x18, scram.final(challenge)))
    done = client.receive(Auth)

    assert (challenge.reason, challenge.properties.authentication_method) == (0x18, METHOD)
    assert (done.reason, done.properties.authentication_method) == (0x00, METHOD)
    scram.check(done.properties.authentication_data)
    client.ping()


@shows("5.0: MQTT-4.12.1-2", "5.0: MQTT-4.13.2-1")
def test_a_failed_second_authentication_closes_the_connection(connect_guarded: Wires, version: int) -> None:
    client, scram = log_in(connect_guarded), Scram(password="byron")

    client.send(auth(0x19, scram.first()))
    client.send(auth(0x18, scram.final(client.receive(Auth))))

    client.expect_disconnect(0x87, 0x86)


@shows("5.0: MQTT-4.12.1-1", "5.0: MQTT-4.12.1-2")
def test_the_method_cannot_be_changed_later(connect_guarded: Wires, version: int) -> None:
    client = log_in(connect_guarded)

    client.send(auth(0x19, Scram().first(), method="SCRAM-SHA-512"))

    client.expect_disconnect(0x82, 0x8C)


@shows("5.0: MQTT-3.15.1-1", "5.0: MQTT-2.1.3-1")
@pytest.mark.parametrize("flags", [0x1, 0x2, 0xF])
def test_auth_with_wrong_flags_is_malformed(connect_guarded: Wires, version: int, flags: int) -> None:
    client = log_in(connect_guarded)
    content = b"\x15" + raw.text(METHOD) + b"\x16" + raw.text(Scram().first())

    client.send(raw.frame(0xF0 | flags, b"\x19", raw.properties(version, content)))

    client.expect_disconnect(0x81)


@shows("5.0: MQTT-3.15.2-1", "5.0: MQTT-4.13.1-1")
@pytest.mark.parametrize("reason", [0x01, 0x04, 0x80, 0x87])
def test_auth_has_three_reason_codes(connect_guarded: Wires, version: int, reason: int) -> None:
    client = log_in(connect_guarded)
    content = b"\x15" + raw.text(METHOD) + b"\x16" + raw.text(Scram().first())

    client.send(raw.frame(0xF0, raw.u8(reason), raw.properties(version, content)))

    client.expect_disconnect(0x81, 0x82)


@shows("5.0: MQTT-3.15.2-2", "5.0: MQTT-3.15.2-3", "5.0: MQTT-3.1.2-24")
def test_auth_fits_the_clients_maximum_packet_size(connect_guarded: Wires, version: int) -> None:
    scram = Scram()
    bare = begin(connect_guarded, scram)[1]
    method, data = bare.properties.authentication_method or "", bare.properties.authentication_data or b""
    # Fixed header, reason, property length, and the two properties that the exchange cannot do without.
    needed = len(raw.frame(0xF0, b"\x18", raw.properties(version, b"\x15" + raw.text(method) + b"\x16" + raw.text(data))))

    scram = Scram()
    client = connect_guarded.open()
    client.send_request(authentication_method=METHOD, authentication_data=scram.first(), maximum_packet_size=needed + 8)
    frame = client.receive_frame()

    assert frame.first_byte == 0xF0
    assert len(frame.raw) <= needed + 8
