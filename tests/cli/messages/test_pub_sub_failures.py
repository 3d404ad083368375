"""What ``braidmq pub`` and ``braidmq sub`` say when something goes wrong: one line, and a fitting exit status."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Connack, Suback
from braidmq.mqtt.properties import Properties
from tests.support.certificates import Authority
from tests.support.command import Ended, run
from tests.support.mosquitto import Mosquitto, mosquitto
from tests.support.scripted_server import ScriptedServer


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signed the certificate of the strict server."""
    return Authority(tmp_path_factory.mktemp("strict"))


@pytest.fixture(scope="module")
def strict(authority: Authority) -> Iterator[Mosquitto]:
    """A Mosquitto that knows one user, who may only read, and that has a certificate."""
    folder = authority.directory
    pair = authority.server()
    acl = "user anna\ntopic read open/#\n"
    with mosquitto(folder, users={"anna": "secret"}, acl=acl, cert_file=pair.cert_file, key_file=pair.key_file) as server:
        yield server


def pub(port: object, *arguments: str, **options: object) -> Ended:
    return run("pub", "-h", "127.0.0.1", "-p", str(port), *arguments, **options)  # type: ignore[arg-type]


def sub(port: object, *arguments: str, **options: object) -> Ended:
    return run("sub", "-h", "127.0.0.1", "-p", str(port), "-W", "20", *arguments, **options)  # type: ignore[arg-type]


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize(
    ("version", "exit_code", "words"),
    [("mqttv311", 5, "not authorized (return code 5)"), ("mqttv5", 135, "not authorized (0x87)")],
)
def test_a_refused_login_says_the_reason_in_words(strict: Mosquitto, version: str, exit_code: int, words: str) -> None:
    ended = pub(strict.login_port, "-V", version, "-t", "t", "-m", "x")

    assert ended == Ended(exit_code, "", f"braidmq pub: the server rejected the connection: {words}\n")


def test_a_reason_string_of_the_server_is_passed_on() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(0x8A, False, Properties(reason_string="for ten minutes")), MQTT5))

    with ScriptedServer(serve) as port:
        ended = pub(port, "-V", "5", "-t", "t", "-m", "x")

    assert ended.exit_code == 0x8A
    assert ended.errors == 'braidmq pub: the server rejected the connection: banned (0x8A); it says "for ten minutes"\n'


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize("way", ["option", "environment", "file", "url"])
def test_a_password_may_come_in_four_ways(strict: Mosquitto, way: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    options = {
        "option": (["-u", "anna", "-P", "secret"], {}),
        "environment": ([], {"BRAIDMQ_USER": "anna", "BRAIDMQ_PASSWORD": "secret"}),
        "file": (["-u", "anna", "--password-file", str(tmp_path / "password")], {}),
        "url": (["-L", f"mqtt://anna:secret@127.0.0.1:{strict.login_port}/"], {}),
    }
    arguments, environment = options[way]

    assert sub(strict.login_port, "-t", "open/a", "-E", *arguments, env=environment).exit_code == 0


@pytest.mark.needs("mosquitto")
def test_a_rejected_message_is_reported_and_sets_the_exit_status(strict: Mosquitto) -> None:
    ended = pub(strict.login_port, "-V", "5", "-u", "anna", "-P", "secret", "-t", "open/a", "-m", "x", "-q", "1")

    assert ended == Ended(0x87, "", "braidmq pub: message 1 was rejected: not authorized (0x87)\n")


@pytest.mark.parametrize(("version", "words"), [(4, "'a'"), (5, "'a': not authorized (0x87)")])
def test_sub_ends_when_every_subscription_is_refused(version: int, words: str) -> None:
    code = 0x80 if version == 4 else 0x87

    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(), version))
        connection.recv(1000)
        connection.sendall(encode(Suback(1, [code]), version))
        connection.recv(1000)

    with ScriptedServer(serve) as port:
        ended = sub(port, "-V", str(version), "-t", "a")

    assert ended.exit_code == code
    assert ended.errors == f"braidmq sub: the server rejected the subscription to {words}\n"


@pytest.mark.needs("mosquitto")
def test_tls_accepts_only_servers_of_a_known_authority(strict: Mosquitto, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "Other CA")

    accepted = pub(strict.tls_port, "--cafile", authority.cert_file, "-t", "t", "-m", "x")
    refused = pub(strict.tls_port, "--cafile", other.cert_file, "-t", "t", "-m", "x")

    assert accepted == Ended(0, "", "")
    assert refused.exit_code == 8
    assert refused.errors.startswith(f"braidmq pub: cannot connect to 127.0.0.1:{strict.tls_port}: the server's certificate")
    assert len(refused.errors.splitlines()) == 1


def test_a_missing_client_certificate_is_reported_as_a_tls_failure(authority: Authority) -> None:
    pair = authority.server(file_stem="demanding")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    context.load_verify_locations(authority.cert_file)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secure:
            with pytest.raises(ssl.SSLError):
                secure.do_handshake()
            # Read to the end: closing with unread data would tear the alert away from under the client.
            plain = socket.socket(fileno=secure.detach())
            plain.settimeout(20)
        with plain:
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(1000):
                pass

    with ScriptedServer(serve) as port:
        ended = pub(port, "--cafile", authority.cert_file, "-t", "t", "-m", "x")

    assert ended.exit_code == 8
    assert ended.errors == "braidmq pub: TLS failed: certificate required\n"


def test_a_server_that_closes_without_an_answer_is_reported_in_one_line() -> None:
    with ScriptedServer(lambda connection: connection.recv(1000)) as port:
        ended = pub(port, "-t", "t", "-m", "x")

    assert ended == Ended(7, "", "braidmq pub: the server closed the connection before it answered CONNECT\n")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["-h", "127.0.0.1", "-p", "1"], 1, "cannot connect to 127.0.0.1:1: connection refused"),
        (["-h", "no-such-host.invalid"], 1, "cannot connect to no-such-host.invalid:1883: the host name cannot be resolved"),
        (["--cafile", "/nowhere/ca.crt"], 8, "/nowhere/ca.crt: No such file or directory"),
        (["--unix", "/nowhere/mqtt.sock"], 1, "cannot connect to /nowhere/mqtt.sock: no such file or directory"),
        (["-L", "http://host/topic"], 1, "-L: write a URL such as mqtt://host:1883/topic"),
        (["-V", "mqttv311", "-D", "publish", "content-type", "x"], 1, "-D and -x need MQTT 5"),
        (["-D", "publish", "colour", "red"], 1, "-D publish colour: not a property of publish"),
        (["-D", "publish", "message-expiry-interval", "soon"], 1, "must be a number from 0 to 4294967295, not 'soon'"),
        (["--will-payload", "x"], 1, "a will needs --will-topic"),
        (["--password-file", "/nowhere/password"], 1, "/nowhere/password: No such file or directory"),
        (["-q", "3"], 1, "'-q'"),
        (["-l"], 1, "give exactly one of -m, -f, -l, -n and -s"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_status(arguments: list[str], exit_code: int, words: str) -> None:
    ended = run("pub", "-t", "t", "-m", "x", *arguments)

    assert ended.exit_code == exit_code
    assert ended.output == ""
    assert len(ended.errors.splitlines()) == 1
    assert words in ended.errors


@pytest.mark.parametrize("topic", ["a/#", "a/+/b", ""])
def test_a_topic_that_cannot_be_published_to_is_refused(topic: str) -> None:
    ended = run("pub", "-t", topic, "-m", "x")

    assert ended.exit_code == 1
    assert len(ended.errors.splitlines()) == 1


def test_a_server_that_does_not_speak_mqtt_is_reported_in_one_line() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))

    with ScriptedServer(serve) as port:
        ended = pub(port, "-t", "t", "-m", "x")

    assert ended.exit_code == 2
    assert ended.errors.startswith("braidmq pub: the server violated the protocol: ")
    assert len(ended.errors.splitlines()) == 1


def test_a_message_beyond_what_the_server_takes_is_not_sent() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(0, False, Properties(maximum_packet_size=20)), MQTT5))
        connection.recv(1000)

    with ScriptedServer(serve) as port:
        ended = pub(port, "-V", "5", "-t", "t", "-m", "x" * 20)

    assert ended == Ended(25, "", "braidmq pub: the server accepts packets of at most 20 bytes\n")


def test_quiet_says_nothing_but_still_fails() -> None:
    assert run("pub", "-h", "127.0.0.1", "-p", "1", "-t", "t", "-m", "x", "--quiet") == Ended(1, "", "")
