"""``braidmq import-mosquitto``: the result is a configuration of ours, nothing is lost silently, nothing is opened wider."""

from __future__ import annotations

import asyncio
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from braidmq.access.contract import Credentials, Granted
from braidmq.access.local import LocalAccess
from braidmq.base.config import sources as config
from braidmq.base.config.settings import Settings
from braidmq.base.units import Seconds
from braidmq.cli.main import main
from braidmq.cli.mosquitto import conf as mosquitto_conf
from tests.support.certificates import Authority


class Importer:
    """Runs the command on a configuration in ``folder``."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.out = ""
        self.err = ""
        self._capsys = capsys

    def __call__(self, text: str, *arguments: str) -> int:
        (self.folder / "mosquitto.conf").write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["import-mosquitto", str(self.folder / "mosquitto.conf"), "-o", str(self.folder / "out"), *arguments])
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    @property
    def tables(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "out" / "braidmq.toml").read_text())

    @property
    def settings(self) -> Settings:
        return config.load(self.folder / "out" / "braidmq.toml", environ={}, overrides={}).settings

    def outcomes(self, line: str) -> list[str]:
        """What was said about a line: taken, changed or none."""
        return [row.split()[0] for row in self.out.splitlines() if f"  {line}  " in f"{row}  "]


@pytest.fixture
def importer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Importer:
    return Importer(tmp_path, capsys)


PASSWORDS = (
    "alice:$7$101$bYM76pAWLhTNFv5n$IAAoH1KrFVobV/SSU6mKIhfUkfbjNqNTLqAPMLbrNASIJw/QPqZS6nEkTd6h6jFpiFPlVe72I2pvOxBa5pH1rg==\n"
)


def test_single_options_become_their_keys(importer: Importer) -> None:
    status = importer(
        "max_packet_size 2000\n"
        "max_inflight_messages 50\n"
        "max_queued_messages 123\n"
        "max_queued_bytes 70000\n"
        "max_keepalive 600\n"
        "max_topic_alias 7\n"
        "sys_interval 30\n"
        "queue_qos0_messages true\n"
        "check_retain_source false\n"
        "persistent_client_expiration 2w\n"
        "log_type all\n"
    )

    settings = importer.settings
    assert status == 0
    assert settings.mqtt.packet_bytes_max == 2000
    assert settings.mqtt.inflight_max == 50
    assert settings.session.queue_messages_max == 123
    assert settings.session.queue_bytes_max == 70000
    assert settings.mqtt.keep_alive_max == 600
    assert settings.mqtt.topic_alias_maximum == 7
    assert settings.sys.interval == Seconds(30)
    assert settings.session.queue_qos0
    assert not settings.retained.recheck_publisher
    assert settings.session.expiry_mqtt3 == settings.session.expiry_max == Seconds(14 * 86400)
    assert settings.log.level == "debug"


def test_without_a_listener_this_machine_is_served_as_by_mosquitto(importer: Importer) -> None:
    assert importer("") == 0

    assert importer.tables["listeners"] == {"tcp": {"default": {"bind": "127.0.0.1:1883"}}}


def test_listeners_keep_their_addresses_kinds_and_limits(importer: Importer) -> None:
    importer(
        "allow_anonymous true\n"
        "listener 1883\nmax_connections 10\n"
        "listener 1884 127.0.0.1\nmax_connections -1\n"
        "listener 1885 ::1\n"
        "listener 9001\nprotocol websockets\n"
        "listener 1886\nsocket_domain ipv6\n"
    )

    assert importer.settings.listeners.tcp["default"].connections_max == 10
    assert [each["bind"] for each in importer.tables["listeners"]["tcp"].values()] == [
        ":1883",
        "127.0.0.1:1884",
        "[::1]:1885",
        "[::]:1886",
    ]
    assert importer.tables["listeners"]["ws"]["default"] == {"bind": ":9001", "allow_anonymous": True}


def test_the_default_listener_of_port_and_bind_address_comes_beside_others(importer: Importer) -> None:
    importer("allow_anonymous true\nport 1999\nbind_address 127.0.0.1\nlistener 1883 127.0.0.1\n")

    binds = [each["bind"] for each in importer.tables["listeners"]["tcp"].values()]
    assert binds == ["127.0.0.1:1999", "127.0.0.1:1883"]


def test_tls_and_certificate_names_are_taken(importer: Importer, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    pair = authority.server()
    status = importer(
        f"listener 8883\ncertfile {pair.cert_file}\nkeyfile {pair.key_file}\ncafile {authority.cert_file}\n"
        "require_certificate true\nuse_subject_as_username true\nuse_identity_as_username true\ntls_version tlsv1.3\n"
        f"listener 8884\ncertfile {pair.cert_file}\nkeyfile {pair.key_file}\nprotocol websockets\nallow_anonymous true\n"
    )

    tls, wss = importer.settings.listeners.tls["default"], importer.settings.listeners.wss["default"]
    assert status == 0
    assert (tls.cert_file, tls.key_file, tls.ca_file) == (str(pair.cert_file), str(pair.key_file), str(authority.cert_file))
    assert (tls.verify, tls.tls_min, tls.user_from_certificate) == ("required", "1.3", "cn")
    assert (wss.verify, wss.allow_anonymous) == ("none", True)
    assert importer.outcomes("use_subject_as_username true") == ["none"]


def test_passwords_and_rules_are_copied_and_work(importer: Importer, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text(PASSWORDS)
    (tmp_path / "acl").write_text("user alice\ntopic read a/#\npattern write dev/%c\n")

    status = importer("listener 1883\npassword_file passwd\nacl_file acl\n")

    assert status == 0
    assert importer.tables["listeners"]["tcp"]["default"]["allow_anonymous"] is False
    assert (tmp_path / "out" / "passwd").stat().st_mode & 0o777 == 0o600

    async def log_in() -> None:
        access = LocalAccess(importer.settings)
        credentials = Credentials(client_id="c1", user_name="alice", password=b"secret")
        assert await access.authenticate(credentials) == Granted("alice")
        rules = access.rules_for("c1", "alice")
        assert (rules.may_subscribe("a/#"), rules.may_publish("a/x"), rules.may_publish("dev/c1")) == (True, False, True)
        await access.close()

    asyncio.run(log_in())
    assert "$argon2id$" in (tmp_path / "out" / "passwd").read_text()
    assert (tmp_path / "passwd").read_text() == PASSWORDS


@pytest.mark.needs("mosquitto_passwd")
def test_a_file_of_mosquitto_passwd_is_taken_as_it_is(importer: Importer, tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.touch()
    for scheme, user in (("sha512", "old"), ("sha512-pbkdf2", "new")):
        subprocess.run(
            ["mosquitto_passwd", "-H", scheme, "-b", str(path), user, f"{user} secret"], check=True, capture_output=True
        )

    assert importer(f"listener 1883\npassword_file {path}\n") == 0

    async def log_in() -> None:
        access = LocalAccess(importer.settings)
        for user in ("old", "new"):
            credentials = Credentials(client_id="c1", user_name=user, password=f"{user} secret".encode())
            assert await access.authenticate(credentials) == Granted(user)
        await access.close()

    asyncio.run(log_in())


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("mount_point a/", "mount points"),
        ("bind_interface eth0", "interface"),
        ("psk_hint h", "pre-shared"),
        ("enable_proxy_protocol 2", "proxy_peers"),
        ("certfile /x", "keyfile is missing"),
        ("protocol mqttsn", "unknown protocol"),
    ],
)
def test_a_listener_that_would_be_wider_open_than_before_is_not_enabled(importer: Importer, option: str, why: str) -> None:
    importer(f"allow_anonymous true\nlistener 1883 127.0.0.1\n{option}\n")

    (kind,) = importer.tables["listeners"].values()
    assert kind["default"]["enabled"] is False
    assert why in importer.out
    assert "not enabled" in importer.out


def test_a_listener_that_no_client_could_use_is_not_enabled(importer: Importer) -> None:
    assert importer("listener 1883\n") == 0

    assert importer.tables["listeners"]["tcp"]["default"]["enabled"] is False
    assert "no client could log in" in importer.out


def test_the_rules_of_a_plugin_become_no_rights_at_all(importer: Importer) -> None:
    importer("allow_anonymous true\nlistener 1883\nplugin /usr/lib/dynsec.so\nplugin_opt_config_file /etc/x\n")

    rules = LocalAccess(importer.settings).rules_for("c1", None)
    assert not rules.unrestricted
    assert not rules.may_publish("a")


def test_every_line_is_converted_or_reported(importer: Importer, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text(PASSWORDS)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.conf").write_text("sys_interval 5\n")
    text = (
        "# a comment\n"
        "include_dir more\n"
        "pid_file /run/x.pid\n"
        "persistence true\n"
        "user mosquitto\n"
        "log_dest syslog\nlog_type error\nlog_type warning\n"
        "max_connections 5\n"
        "password_file passwd\n"
        "message_size_limit 100\n"
        "listener 1883\nhttp_dir /srv\nmax_qos 1\ncafile /x\nciphers HIGH\n"
        "listener 0 /run/mosquitto.sock\nmax_connections 3\n"
        "per_listener_settings false\n"
        "no_such_option 1\n"
        "connection up\naddress example.org\ntopic # both 2\nremote_password hunter2\nbridge_capath /x\n"
        "auth_opt_password hunter3\n"
    )

    importer(text)

    for line in [*text.splitlines()[1:], "sys_interval 5"]:
        shown = line if "password hunter" not in line and "_password " not in line else f"{line.split()[0]} ***"
        assert importer.outcomes(shown), line
    assert importer.outcomes("no_such_option 1") == ["none"]
    assert importer.outcomes("address example.org") == ["none"]
    assert "hunter" not in importer.out


def test_an_overridden_line_is_reported(importer: Importer) -> None:
    importer("allow_anonymous true\nlistener 1883 127.0.0.1\nmax_connections 5\nmax_connections 6\n")

    assert importer.outcomes("max_connections 5") == ["none"]
    assert importer.outcomes("max_connections 6") == ["taken"]


def test_with_settings_per_listener_each_has_its_own_anonymous_rule_and_lost_files_are_reported(
    importer: Importer, tmp_path: Path
) -> None:
    (tmp_path / "one").write_text(PASSWORDS)
    (tmp_path / "two").write_text(PASSWORDS.replace("alice", "bob"))

    importer(
        "per_listener_settings true\n"
        "listener 1883\npassword_file one\nallow_anonymous false\n"
        "listener 1884\npassword_file two\nallow_anonymous true\n"
        "listener 1885\n"
    )

    listeners = importer.settings.listeners.tcp
    assert [each.allow_anonymous for each in listeners.values()] == [False, True, False]
    assert importer.outcomes("password_file two") == ["none"]
    assert "changed" in importer.outcomes("password_file one")
    assert (tmp_path / "out" / "passwd").read_text() == PASSWORDS


def test_invalid_files_are_copied_and_reported(importer: Importer, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("alice:plain text\n")
    (tmp_path / "acl").write_text("topic read\n")

    importer("listener 1883\npassword_file passwd\nacl_file acl\n")

    assert "all clients are rejected: line 1" in importer.out
    assert "everything is denied: line 1" in importer.out


def test_a_certificate_that_is_not_there_ends_with_status_3(importer: Importer) -> None:
    status = importer("allow_anonymous true\nlistener 8883\ncertfile /nowhere/c\nkeyfile /nowhere/k\n")

    assert status == 3
    assert len(importer.err.splitlines()) == 1
    assert "/nowhere/c" in importer.err


@pytest.mark.parametrize(
    "text",
    [
        "listener\n",
        "listener abc\n",
        "listener 70000\n",
        "port x\n",
        "allow_anonymous maybe\n",
        "max_packet_size big\n",
        "max_packet_size -4\n",
        "persistent_client_expiration 5x\n",
        "password_file nowhere\n",
        "include_dir nowhere\n",
    ],
)
def test_a_file_that_mosquitto_would_reject_ends_with_one_line_and_writes_nothing(importer: Importer, text: str) -> None:
    status = importer(f"# first\n{text}")

    assert status == 2
    assert len(importer.err.splitlines()) == 1
    assert "mosquitto.conf:2" in importer.err
    assert not (importer.folder / "out").exists()


def test_nothing_is_overwritten_without_force(importer: Importer) -> None:
    assert importer("sys_interval 5\n") == 0
    assert importer("sys_interval 6\n") == 1
    assert importer.settings.sys.interval == Seconds(5)

    assert importer("sys_interval 6\n", "--force") == 0
    assert importer.settings.sys.interval == Seconds(6)


def test_a_missing_configuration_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["import-mosquitto", str(tmp_path / "nowhere.conf"), "-o", str(tmp_path / "out")])

    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_included_files_come_in_mosquittos_order_and_only_conf_files(tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    for name in ("b.conf", "A.conf", "01.conf", "a.conf", "B.conf", "00.conf", "README"):
        (folder / name).write_text(f"option {name}\n")
    (tmp_path / "mosquitto.conf").write_text("include_dir conf.d\nlast one\n")

    values = [line.value for line in mosquitto_conf.read(tmp_path / "mosquitto.conf")]

    assert values == ["conf.d", "00.conf", "01.conf", "A.conf", "a.conf", "B.conf", "b.conf", "one"]
