"""``braidmq pub`` and ``braidmq sub`` as a user runs them, against our own broker and against Mosquitto."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Connack, Disconnect, Suback
from braidmq.testing import Broker
from tests.support.command import Ended, end, run, start
from tests.support.mosquitto import mosquitto
from tests.support.scripted_server import ScriptedServer


@pytest.fixture(scope="module", params=["braidmq", pytest.param("mosquitto", marks=pytest.mark.needs("mosquitto"))])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that accepts every login."""
    if request.param == "braidmq":
        with Broker() as broker:
            yield str(broker.port)
    else:
        with mosquitto(tmp_path_factory.mktemp("mosquitto")) as server:
            yield str(server.port)


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


def test_repeat_publishes_the_given_number_of_times(port: str) -> None:
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


def test_retained_only_ends_at_the_first_live_message(port: str) -> None:
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
    session = ("-i", "turn_writer", "-c", "-q", "1")
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


def test_debug_prints_every_packet_without_the_password(port: str) -> None:
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


def test_a_closed_pipe_ends_sub_silently(port: str) -> None:
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

    with ScriptedServer(serve, connections=2) as port:
        ended = sub(port, "-t", "t", "-C", "1", "-V", "mqttv311")

    assert (ended.exit_code, ended.output) == (0, "second\n")
    assert ended.errors == "braidmq sub: the connection was lost; reconnecting\n"


def test_sub_does_not_fight_for_a_session_that_was_taken_over() -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(encode(Connack(), MQTT5))
        connection.recv(1000)
        connection.sendall(encode(Suback(1, [0]), MQTT5) + encode(Disconnect(0x8E), MQTT5))

    with ScriptedServer(serve) as port:
        ended = sub(port, "-t", "t", "-V", "5")

    assert ended == Ended(0x8E, "", "braidmq sub: the server ended the connection: session taken over (0x8E)\n")
