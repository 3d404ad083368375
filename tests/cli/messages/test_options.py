"""How ``pub`` and ``sub`` understand their options; nothing is connected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from braidmq.cli.errors import CommandFailed
from braidmq.cli.messages.options import ConnectionOptions, connection_options, read_connection
from braidmq.cli.messages.property_option import CommandWithProperties
from braidmq.mqtt.packets import MQTT5, MQTT31, MQTT311, Will
from braidmq.mqtt.properties import Properties


def read(*arguments: str) -> ConnectionOptions:
    """The connection that a command with these arguments would make."""
    seen: list[ConnectionOptions] = []

    @click.command(cls=CommandWithProperties)
    @click.option("-m", "--message")
    @click.option("-r", "--retain", is_flag=True)
    @connection_options
    def command(**given: Any) -> None:
        seen.append(read_connection(given, "test_"))

    command.main(list(arguments), standalone_mode=False)
    return seen[0]


@pytest.mark.parametrize(
    ("arguments", "target", "has_tls"),
    [
        ([], "localhost:1883", False),
        (["-h", "::1"], "[::1]:1883", False),
        (["--tls"], "localhost:8883", True),
        (["-p", "8883"], "localhost:8883", True),
        (["--ws"], "ws://localhost:8083/mqtt", False),
        (["--ws", "--tls"], "wss://localhost:8084/mqtt", True),
        (["--ws", "-p", "9001", "--ws-path", "/"], "ws://localhost:9001/", False),
        (["-L", "mqtt://h/t"], "h:1883", False),
        (["-L", "mqtts://h/t"], "h:8883", True),
        (["-L", "mqtts://h:1/t"], "h:1", True),
        (["-L", "ws://h/path"], "ws://h:8083/path", False),
        (["-L", "wss://h"], "wss://h:8084/mqtt", True),
        (["--unix", "/run/mqtt.sock"], "/run/mqtt.sock", False),
    ],
)
def test_connection_options_select_the_endpoint(arguments: list[str], target: str, has_tls: bool) -> None:
    endpoint = read(*arguments).endpoint

    assert str(endpoint) == target
    assert (endpoint.tls is not None) == has_tls


def test_insecure_skips_the_host_name_but_not_the_authority() -> None:
    context = read("--insecure").endpoint.tls

    assert context is not None
    assert not context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"


@pytest.mark.parametrize(
    ("arguments", "version"),
    [
        ([], MQTT311),
        (["-V", "mqttv31"], MQTT31),
        (["-V", "5"], MQTT5),
        (["-x", "10"], MQTT5),
        (["-D", "connect", "receive-maximum", "5"], MQTT5),
    ],
)
def test_the_version_is_3_1_1_unless_something_needs_5(arguments: list[str], version: int) -> None:
    assert read(*arguments).login.version == version


def test_keeping_the_session_requests_one_that_never_expires_in_mqtt_5() -> None:
    assert read("-c", "-V", "5").login.properties.session_expiry_interval == 0xFFFFFFFF
    assert read("-c", "-x", "60").login.properties.session_expiry_interval == 60
    assert read("-x", "-1").login.properties.session_expiry_interval == 0xFFFFFFFF
    assert read("-c").login.clean_start is False


def test_properties_go_to_their_packets() -> None:
    connection = read(
        *("-D", "connect", "user-property", "a", "1"),
        *("-D", "connect", "user-property", "a", "2"),
        *("-D", "will", "will-delay-interval", "9"),
        *("--will-topic", "w", "--will-payload", "bye", "--will-qos", "1", "--will-retain"),
        *("-D", "disconnect", "session-expiry-interval", "0"),
    )

    assert connection.login.properties == Properties(user_properties=(("a", "1"), ("a", "2")))
    assert connection.login.will == Will("w", b"bye", 1, True, Properties(will_delay_interval=9))
    assert connection.properties_of("disconnect") == Properties(session_expiry_interval=0)


def test_a_message_that_looks_like_an_option_is_a_message() -> None:
    # click alone takes it so; the search for -D must not disturb that.
    assert read("-m", "-D").login.version == MQTT311
    assert read("-rm", "-D").login.version == MQTT311
    assert read("--message", "-D").login.version == MQTT311


@pytest.mark.parametrize(
    "arguments",
    [
        ["-D"],
        ["-D", "connect"],
        ["-D", "connect", "user-property", "a"],
        ["-D", "fly", "user-property", "a", "b"],
        ["-D", "connect", "receive-maximum", "0"],
        ["-D", "connect", "receive-maximum", "65536"],
        ["-D", "connect", "content-type", "x"],
        ["-D", "publish", "content-type", "x", "-D", "publish", "content-type", "y"],
    ],
)
def test_an_invalid_property_is_rejected(arguments: list[str]) -> None:
    with pytest.raises((CommandFailed, click.UsageError)):
        read(*arguments)


def test_a_password_file_gives_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("säcret\nnot this\n")

    assert read("-u", "anna", "--password-file", str(tmp_path / "password")).login.password == "säcret".encode()


def test_an_empty_password_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").touch()

    with pytest.raises(CommandFailed, match="contains no password"):
        read("-u", "anna", "--password-file", str(tmp_path / "password"))


def test_a_prompt_needs_a_terminal() -> None:
    with pytest.raises(CommandFailed, match="needs a terminal"):
        read("-u", "anna", "--ask-password")


def test_a_password_without_a_user_needs_mqtt_5() -> None:
    with pytest.raises(CommandFailed, match="needs a user name"):
        read("-P", "x")

    assert read("-V", "5", "-P", "x").login.password == b"x"
