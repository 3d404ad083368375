"""``braidmq pub`` and ``braidmq sub`` as a user runs them, against our own broker and against Mosquitto."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Connack, Disconnect, Suback
from braidmq.mqtt.properties import Properties
from braidmq.testing import Broker
from tests.support.certificates import Authority
from tests.support.command import Ended, end, run, start
from tests.support.mosquitto import Mosquitto, mosquitto


@pytest.fixture(scope="module", params=["braidmq", pytest.param("mosquitto", marks=pytest.mark.needs("mosquitto"))])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that lets everybody in."""
    if request.param == "braidmq":
        with Broker() as broker:
            yield str(broker.port)
    else:
        with mosquitto(tmp_path_factory.mktemp("mosquitto")) as server:
            yield str(server.port)


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


def start_sub(port: object, topic: str, *arguments: str) -> subprocess.Popen[str]:
    """Start ``sub`` and return when it is subscribed: it has printed the retained message that waits for it."""
    pub(port, "-t", f"{topic}/ready", "-m", "ready", "-r")
    process = start("sub", "-h", "127.0.0.1", "-p", str(port), "-W", "20", "-t", f"{topic}/#", *arguments)
    assert process.stdout is not None
    assert process.stdout.readline().endswith("ready\n")
    return process


# -- messages --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "qos"), [("mqttv31", "1"), ("mqttv311", "0"), ("mqttv311", "2"), ("mqttv5", "1"), ("mqttv5", "2")]
)
def test_a_retained_message_is_published_and_printed(port: str, version: str, qos: str) -> None:
    topic = f"retained/{version}/{qos}"

    published = pub(port, "-V", version, "-t", topic, "-m", "grüße", "-q", qos, "-r")
    received = sub(port, "-V", version, "-t", topic, "-q", qos, "-C", "1", "-F", "%t|%p|%q|%r")

    assert published == Ended(0, "", "")
    assert received == Ended(0, f"{topic}|grüße|{qos}|1\n", "")


def test_lines_of_standard_input_become_messages_in_order(port: str) -> None:
    process = start_sub(port, "lines", "-q", "2", "-C", "6")

    assert pub(port, "-t", "lines/a", "-l", "-q", "2", input="one\n\nthree\nfour\nlast") == Ended(0, "", "")

    assert end(process).output == "one\n\nthree\nfour\nlast\n"


def test_many_lines_arrive_in_order_with_a_small_window(port: str) -> None:
    process = start_sub(port, "many", "-q", "1", "-C", "501")
    lines = "".join(f"{number}\n" for number in range(500))

    pub(port, "-t", "many/a", "-l", "-q", "1", "-M", "3", "-V", "mqttv5", input=lines)

    assert end(process).output == lines


def test_a_file_and_the_whole_input_are_sent_as_one_message(port: str, tmp_path: Path) -> None:
    (tmp_path / "payload").write_bytes(b"one\ntwo")

    pub(port, "-t", "whole/file", "-f", str(tmp_path / "payload"), "-r")
    pub(port, "-t", "whole/input", "-s", "-r", input="a\nb")

    assert sub(port, "-t", "whole/file", "-C", "1").output == "one\ntwo\n"
    assert sub(port, "-t", "whole/input", "-C", "1", "-N").output == "a\nb"


def test_a_null_message_clears_a_retained_one(port: str) -> None:
    pub(port, "-t", "cleared", "-m", "x", "-r")

    pub(port, "-t", "cleared", "-n", "-r")

    assert run("sub", "-h", "127.0.0.1", "-p", port, "-t", "cleared", "-W", "0.5").output == ""


def test_repeat_publishes_so_many_times(port: str) -> None:
    process = start_sub(port, "again", "-C", "4")

    pub(port, "-t", "again/a", "-m", "x", "--repeat", "3", "--repeat-delay", "0.01")

    assert end(process).output == "x\nx\nx\n"


def test_properties_travel_with_the_message(port: str) -> None:
    options = [
        *("-D", "publish", "user-property", "colour", "dark red"),
        *("-D", "publish", "content-type", "text/plain"),
        *("-D", "publish", "message-expiry-interval", "600"),
    ]
    pub(port, "-t", "properties", "-m", "x", "-r", *options)

    received = sub(port, "-V", "5", "-t", "properties", "-C", "1", "-F", "%j")

    properties = json.loads(received.output)["properties"]
    assert properties["user-properties"] == {"colour": "dark red"}
    assert properties["content-type"] == "text/plain"
    assert 590 <= properties["message-expiry-interval"] <= 600


def test_retained_only_ends_at_the_first_message_that_is_not(port: str) -> None:
    pub(port, "-t", "mixed/old", "-m", "old", "-r")
    process = start("sub", "-h", "127.0.0.1", "-p", port, "-W", "20", "-t", "mixed/+", "--retained-only", "-v")
    assert process.stdout is not None
    assert process.stdout.readline() == "mixed/old old\n"
    pub(port, "-t", "mixed/new", "-m", "new")

    assert end(process) == Ended(0, "", "")


def test_retained_messages_can_be_left_out(port: str) -> None:
    pub(port, "-t", "stale", "-m", "old", "-r")

    assert run("sub", "-h", "127.0.0.1", "-p", port, "-t", "stale", "-R", "-W", "0.5").output == ""


def test_topics_can_be_filtered_out(port: str) -> None:
    for name in ("a", "b", "c"):
        pub(port, "-t", f"out/{name}", "-m", name, "-r")

    received = sub(port, "-t", "out/#", "-T", "out/b", "-C", "2")

    assert sorted(received.output.split()) == ["a", "c"]


def test_a_session_is_kept_and_unsubscribed(port: str) -> None:
    session = ("-i", "keeper", "-c", "-q", "1")
    assert sub(port, *session, "-t", "kept", "-E").exit_code == 0
    pub(port, "-t", "kept", "-m", "while away", "-q", "1")

    assert sub(port, *session, "-t", "kept", "-C", "1").output == "while away\n"

    assert sub(port, *session, "-U", "kept", "-E").exit_code == 0
    pub(port, "-t", "kept", "-m", "unheard", "-q", "1")
    assert run("sub", "-h", "127.0.0.1", "-p", port, *session, "-t", "other", "-W", "0.5").output == ""


def test_the_will_is_published_when_the_client_is_killed(port: str) -> None:
    watcher = start_sub(port, "wills", "-C", "2", "-v")
    victim = start_sub(port, "victim", "--will-topic", "wills/victim", "--will-payload", "gone", "--will-qos", "1")

    victim.kill()
    victim.communicate()

    assert end(watcher).output == "wills/victim gone\n"


def test_the_url_gives_host_port_and_topic(port: str) -> None:
    assert run("pub", "-L", f"mqtt://127.0.0.1:{port}/url/a%20b", "-m", "x", "-r").exit_code == 0

    assert run("sub", "-L", f"mqtt://127.0.0.1:{port}/url/+", "-C", "1", "-v", "-W", "20").output == "url/a b x\n"


def test_debug_tells_about_every_packet_but_not_the_password(port: str) -> None:
    told = pub(port, "-t", "debug", "-m", "x", "-q", "2", "-d", "-i", "me", "-u", "anna", "-P", "hush-hush").errors

    packets = [line.split()[2:4] for line in told.splitlines()]
    assert packets == [
        ["sending", "CONNECT"],
        ["received", "CONNACK"],
        ["sending", "PUBLISH"],
        ["received", "PUBREC"],
        ["sending", "PUBREL"],
        ["received", "PUBCOMP"],
        ["sending", "DISCONNECT"],
    ]
    assert "hush-hush" not in told


def test_messages_travel_over_websocket() -> None:
    with Broker() as broker:
        port = str(broker.ports["ws:default"])
        payload = "x" * 200_000

        published = run("pub", "-h", "127.0.0.1", "-p", port, "--ws", "-t", "ws", "-s", "-r", "-q", "1", input=payload)
        received = run("sub", "-L", f"ws://127.0.0.1:{port}/mqtt", "-t", "ws", "-C", "1", "-W", "20")

    assert published == Ended(0, "", "")
    assert received == Ended(0, payload + "\n", "")


# -- how it ends -----------------------------------------------------------------------------------------------------------


def test_a_timeout_ends_with_27(port: str) -> None:
    ended = run("sub", "-h", "127.0.0.1", "-p", port, "-t", "silence", "-W", "0.3")

    assert ended == Ended(27, "", "braidmq sub: timed out\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_sub_in_order(port: str, number: signal.Signals) -> None:
    process = start_sub(port, f"signal{number}")

    process.send_signal(number)

    assert end(process) == Ended(0, "", "")


def test_ctrl_c_ends_pub_without_a_traceback(port: str) -> None:
    watcher = start_sub(port, "interrupted", "-C", "2")
    process = start("pub", "-h", "127.0.0.1", "-p", port, "-t", "interrupted/a", "-l", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("line\n")
    process.stdin.flush()
    assert end(watcher).output == "line\n"  # it is connected and reads

    process.send_signal(signal.SIGINT)

    assert process.wait(20) == 130
    assert process.stderr is not None
    assert process.stderr.read().strip() == ""


def test_a_closed_pipe_ends_sub_without_a_word(port: str) -> None:
    process = start_sub(port, "pipe")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    pub(port, "-t", "pipe/a", "-m", "nobody reads this")

    assert process.wait(20) == 1
    assert process.stderr.read() == ""


def test_sub_comes_back_when_the_connection_is_lost() -> None:
    lost = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(), 4))
        connection.recv(1000)
        connection.sendall(encode(Suback(1, [0]), 4))
        if lost.is_set():
            connection.sendall(b"\x30\x09\x00\x01tsecond")
            connection.recv(1000)
        lost.set()

    with scripted_server(serve, connections=2) as port:
        ended = sub(port, "-t", "t", "-C", "1", "-V", "mqttv311")

    assert (ended.exit_code, ended.output) == (0, "second\n")
    assert ended.errors == "braidmq sub: the connection was lost; connecting again\n"


def test_sub_does_not_fight_for_a_session_that_was_taken_over() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(), MQTT5))
        connection.recv(1000)
        connection.sendall(encode(Suback(1, [0]), MQTT5) + encode(Disconnect(0x8E), MQTT5))

    with scripted_server(serve) as port:
        ended = sub(port, "-t", "t", "-V", "5")

    assert ended == Ended(0x8E, "", "braidmq sub: the server ended the connection: session taken over (0x8E)\n")


# -- what goes wrong, in one line ------------------------------------------------------------------------------------------


@pytest.mark.needs("mosquitto")
@pytest.mark.parametrize(
    ("version", "exit_code", "words"),
    [("mqttv311", 5, "not authorized (return code 5)"), ("mqttv5", 135, "not authorized (0x87)")],
)
def test_a_refused_login_says_the_reason_in_words(strict: Mosquitto, version: str, exit_code: int, words: str) -> None:
    ended = pub(strict.login_port, "-V", version, "-t", "t", "-m", "x")

    assert ended == Ended(exit_code, "", f"braidmq pub: the server refused the connection: {words}\n")


def test_a_reason_string_of_the_server_is_passed_on() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(0x8A, False, Properties(reason_string="for ten minutes")), MQTT5))

    with scripted_server(serve) as port:
        ended = pub(port, "-V", "5", "-t", "t", "-m", "x")

    assert ended.exit_code == 0x8A
    assert ended.errors == 'braidmq pub: the server refused the connection: banned (0x8A); it says "for ten minutes"\n'


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
def test_a_refused_message_is_told_and_is_the_exit_status(strict: Mosquitto) -> None:
    ended = pub(strict.login_port, "-V", "5", "-u", "anna", "-P", "secret", "-t", "open/a", "-m", "x", "-q", "1")

    assert ended == Ended(0x87, "", "braidmq pub: message 1 was refused: not authorized (0x87)\n")


@pytest.mark.parametrize(("version", "words"), [(4, "'a' "), (5, "'a' because of not authorized (0x87)")])
def test_sub_ends_when_every_subscription_is_refused(version: int, words: str) -> None:
    code = 0x80 if version == 4 else 0x87

    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(), version))
        connection.recv(1000)
        connection.sendall(encode(Suback(1, [code]), version))
        connection.recv(1000)

    with scripted_server(serve) as port:
        ended = sub(port, "-V", str(version), "-t", "a")

    assert ended.exit_code == code
    assert ended.errors.strip() == f"braidmq sub: the server refused to subscribe to {words}".strip()


@pytest.mark.needs("mosquitto")
def test_tls_is_for_servers_whose_authority_is_known(strict: Mosquitto, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "Other CA")

    accepted = pub(strict.tls_port, "--cafile", authority.cert_file, "-t", "t", "-m", "x")
    refused = pub(strict.tls_port, "--cafile", other.cert_file, "-t", "t", "-m", "x")

    assert accepted == Ended(0, "", "")
    assert refused.exit_code == 8
    assert refused.errors.startswith(f"braidmq pub: cannot connect to 127.0.0.1:{strict.tls_port}: the server's certificate")
    assert len(refused.errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["-h", "127.0.0.1", "-p", "1"], 1, "cannot connect to 127.0.0.1:1: connection refused"),
        (["-h", "no-such-host.invalid"], 1, "cannot connect to no-such-host.invalid:1883: the host name cannot be looked up"),
        (["--cafile", "/nowhere/ca.crt"], 8, "/nowhere/ca.crt: No such file or directory"),
        (["--unix", "/nowhere/mqtt.sock"], 1, "cannot connect to /nowhere/mqtt.sock: no such file or directory"),
        (["-L", "http://host/topic"], 1, "-L: a URL looks like mqtt://host:1883/topic"),
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


def test_a_server_that_does_not_speak_mqtt_is_told_in_one_line() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(100))

    with scripted_server(serve) as port:
        ended = pub(port, "-t", "t", "-m", "x")

    assert ended.exit_code == 2
    assert ended.errors.startswith("braidmq pub: the server broke the protocol: ")
    assert len(ended.errors.splitlines()) == 1


def test_a_message_beyond_what_the_server_takes_is_not_sent() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(0, False, Properties(maximum_packet_size=20)), MQTT5))
        connection.recv(1000)

    with scripted_server(serve) as port:
        ended = pub(port, "-V", "5", "-t", "t", "-m", "x" * 20)

    assert ended == Ended(25, "", "braidmq pub: the server takes packets of 20 bytes at most\n")


def test_quiet_says_nothing_but_still_fails() -> None:
    assert run("pub", "-h", "127.0.0.1", "-p", "1", "-t", "t", "-m", "x", "--quiet") == Ended(1, "", "")


# -- a server by script ----------------------------------------------------------------------------------------------------


class scripted_server:
    """A server that does what a function says with each of its connections; gives its port."""

    def __init__(self, serve: Callable[[socket.socket], None], connections: int = 1) -> None:
        self._serve = serve
        self._connections = connections
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listening.getsockname()[1]
        return port

    def _run(self) -> None:
        for _ in range(self._connections):
            connection, _ = self._listening.accept()
            with connection:
                connection.settimeout(20)
                self._serve(connection)

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the script did not come to its end"
