"""``braidmq start`` as operators run it: a process with a configuration file, controlled by signals."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from braidmq.mqtt.reasons import Reason
from tests.support.clients.wire import Wire
from tests.support.guarded import PASSWORD
from tests.support.started import COMMAND, Started, environment, try_start

LISTENERS = """
[listeners.tcp.default]
bind = "127.0.0.1:0"
[api]
bind = "127.0.0.1:0"
[node]
data_dir = "data"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration on free ports."""
    written = tmp_path / "braidmq.toml"
    written.write_text(LISTENERS)
    return written


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_sigterm_stops_a_node_cleanly(file: Path, number: signal.Signals) -> None:
    with Started(file) as node:
        client = node.await_client()
        client.subscribe("t", qos=1)
        client.publish("other", b"x", 1)

        node.send(number)

        client.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
        assert node.await_end() == 0
        assert not any("Traceback" in line or " error " in line for line in node.log)


def test_sighup_applies_changed_settings_and_keeps_clients_connected(file: Path) -> None:
    with Started(file) as node:
        port = node.await_port()
        client = Wire("127.0.0.1", port).connect()
        assert client.connack.properties.receive_maximum == 1000

        file.write_text(LISTENERS + "[mqtt]\nreceive_maximum = 7\n")
        node.send(signal.SIGHUP)
        node.await_line("reloaded")

        client.ping()
        assert Wire("127.0.0.1", port).connect().connack.properties.receive_maximum == 7


def test_sighup_names_the_keys_that_need_a_restart(file: Path) -> None:
    with Started(file) as node:
        node.await_port()

        file.write_text(LISTENERS.replace('data_dir = "data"', 'data_dir = "elsewhere"'))
        node.send(signal.SIGHUP)

        node.await_line(r"after a restart: .*node\.data_dir")


def test_sighup_with_an_invalid_file_changes_nothing_and_logs_the_error(file: Path) -> None:
    with Started(file) as node:
        client = node.await_client()

        file.write_text(LISTENERS + "[mqtt]\nreceive_maximun = 7\n")
        node.send(signal.SIGHUP)

        node.await_line(r"not reloaded: .*receive_maximun.*receive_maximum")
        client.ping()


def test_sighup_reloads_the_users(file: Path) -> None:
    passwords = file.parent / "passwords"

    def let_in(*users: str) -> None:
        passwords.unlink(missing_ok=True)
        for user in users:
            command = [*COMMAND, "passwd", "--stdin", str(passwords), user]
            subprocess.run(command, input=PASSWORD + b"\n", check=True, capture_output=True, env=environment())

    let_in("ada", "bob")
    file.write_text(LISTENERS + f'[access]\npassword_file = "{passwords}"\n')
    with Started(file) as node:
        port = node.await_port()
        ada = Wire("127.0.0.1", port).connect(user_name="ada", password=PASSWORD)
        bob = Wire("127.0.0.1", port).connect(user_name="bob", password=PASSWORD)

        let_in("ada")
        node.send(signal.SIGHUP)

        bob.expect_disconnect(Reason.NOT_AUTHORIZED)
        ada.ping()


def test_the_environment_wins_over_the_file(file: Path) -> None:
    file.write_text(LISTENERS + "[mqtt]\nreceive_maximum = 7\n")
    with Started(file, {"BRAIDMQ_MQTT__RECEIVE_MAXIMUM": "9"}) as node:
        assert node.await_client().connack.properties.receive_maximum == 9


def test_the_log_is_json_if_configured_and_includes_drops(file: Path) -> None:
    file.write_text(LISTENERS + '[log]\nformat = "json"\ndrops = true\n')
    with Started(file) as node:
        port = int(node.await_line(r"tcp:default listens on [^\"]*:(\d+)")[1])
        away = Wire("127.0.0.1", port).connect("away", persistent=True)
        away.subscribe("news/#")
        away.disconnect()

        Wire("127.0.0.1", port).connect("writer").publish("news/1", b"x", 0)
        node.await_line("dropped")
        node.send(signal.SIGTERM)
        assert node.await_end() == 0

    lines = [json.loads(line) for line in node.log]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    dropped = next(line for line in lines if line["logger"] == "braidmq.drops")
    assert (dropped["reason"], dropped["client_id"], dropped["topic"]) == ("absent", "away", "news/1")


def test_a_second_node_cannot_use_the_same_data_directory(file: Path) -> None:
    with Started(file) as node:
        node.await_port()

        second = try_start(file)

        assert second.returncode != 0
        assert "Traceback" not in second.stderr
        assert "data" in second.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mqtt]\nreceive_maximun = 7\n", "did you mean"),
        ("[mqtt]\nreceive_maximum = 0\n", "receive_maximum"),
        ("[listeners.tcp.default]\n", "empty table"),
        ("[listeners.tcp.default]\nenabled = true\n", "listeners.tcp.default.bind"),
        ("not toml", "TOML"),
        ('[hooks]\nload = ["no.such:Hook"]\n[api]\nbind = ""\n[listeners.tcp.default]\nbind = "127.0.0.1:0"\n', "hooks.load"),
    ],
    ids=["unknown-key", "out-of-bounds", "empty-table", "missing-key", "not-toml", "no-such-hook"],
)
def test_an_invalid_configuration_prints_one_line_and_sets_the_exit_status(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "braidmq.toml"
    file.write_text(text)

    ended = try_start(file)

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert said in ended.stderr.splitlines()[-1]


def test_an_address_in_use_is_reported_clearly(file: Path) -> None:
    with Started(file) as node:
        port = node.await_port()
        other = file.with_name("other.toml")
        other.write_text(LISTENERS.replace("127.0.0.1:0", f"127.0.0.1:{port}", 1).replace('"data"', '"other"'))

        second = try_start(other)

        assert second.returncode != 0
        assert "Traceback" not in second.stderr
        assert str(port) in second.stderr.splitlines()[-1]


@pytest.mark.parametrize(("mode", "others"), [(0o777, "every user of this machine"), (0o770, "its group")])
@pytest.mark.row(64)
def test_a_data_directory_writable_by_others_causes_a_warning(file: Path, mode: int, others: str) -> None:
    data_dir = file.parent / "data"
    data_dir.mkdir()
    data_dir.chmod(mode)

    with Started(file) as node:
        node.await_line(rf"warning node\.data_dir: data \(mode 0{mode:o}\) is writable by {others}")
        node.await_port()


@pytest.mark.row(64)
def test_a_data_directory_writable_by_its_owner_only_causes_no_warning(file: Path) -> None:
    (file.parent / "data").mkdir(mode=0o755)

    with Started(file) as node:
        node.await_port()
        assert not any("is writable by" in line for line in node.log)
