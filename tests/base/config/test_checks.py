"""What must hold between the keys: who may reach a listener, certificates, addresses."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from braidmq.base.config import sources as config
from braidmq.base.errors import ConfigError


def make_pair(folder: Path, name: str, password: bytes | None = None) -> tuple[str, str]:
    """A self-signed certificate and its key as files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        subject, subject, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(days=1)
    )
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    return str(cert_file), str(key_file)


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, object]:
    """A TLS listener on loopback as it should be."""
    cert_file, key_file = make_pair(tmp_path, "server")
    return {"bind": "127.0.0.1:8883", "cert_file": cert_file, "key_file": key_file}


def load_listener(kind: str, listener: dict[str, object], **tables: object) -> config.Config:
    return config.from_tables({"listeners": {kind: {"x": listener}}, **tables})


def refusal(kind: str, listener: dict[str, object], **tables: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_listener(kind, listener, **tables)
    return caught.value


# -- who may reach it --------------------------------------------------------------------------------------------------

REACHABLE = ["0.0.0.0:1883", ":1883", "[::]:1883", "192.0.2.1:1883", "broker.example:1883"]


@pytest.mark.parametrize("bind", REACHABLE)
def test_a_listener_beyond_loopback_needs_to_know_who_may_connect(bind: str) -> None:
    problem = refusal("tcp", {"bind": bind})

    assert problem.key == "listeners.tcp.x"
    assert "allow_anonymous = true" in problem.hint


@pytest.mark.parametrize("bind", REACHABLE)
def test_a_password_file_is_enough_beyond_loopback(bind: str, tmp_path: Path) -> None:
    (tmp_path / "passwords").touch()

    assert load_listener("tcp", {"bind": bind}, access={"password_file": str(tmp_path / "passwords")}).notes == []


def test_anonymous_access_from_anywhere_must_be_explicit_and_is_reported() -> None:
    notes = load_listener("tcp", {"bind": "0.0.0.0:1883", "allow_anonymous": True}).notes

    assert notes == ["listeners.tcp.x (0.0.0.0:1883) accepts clients without credentials"]


def test_certificates_as_user_names_are_enough_only_if_required(tls: dict[str, object]) -> None:
    tls |= {"bind": ":8883", "ca_file": tls["cert_file"], "user_from_certificate": "cn"}

    assert load_listener("tls", tls | {"verify": "required"}).notes == []
    assert "no authentication is configured" in str(refusal("tls", tls | {"verify": "optional"}))


@pytest.mark.parametrize("bind", ["127.0.0.1:1883", "[::1]:1883", "localhost:1883"])
def test_loopback_needs_no_credentials(bind: str) -> None:
    assert load_listener("tcp", {"bind": bind}).notes == []


def test_loopback_behind_a_proxy_counts_as_reachable() -> None:
    assert "no authentication is configured" in str(
        refusal("tcp", {"bind": "127.0.0.1:1883", "proxy_protocol": True, "proxy_peers": ["127.0.0.1"]})
    )


def test_a_listener_switched_off_is_not_looked_at() -> None:
    assert load_listener("tcp", {"bind": "0.0.0.0:1883", "enabled": False}).notes == []


# -- certificates ------------------------------------------------------------------------------------------------------


def test_a_certificate_and_its_key_are_accepted(tls: dict[str, object], tmp_path: Path) -> None:
    cert_file, key_file = make_pair(tmp_path, "other.example")

    loaded = load_listener("tls", tls | {"sni": {"other.example": {"cert_file": cert_file, "key_file": key_file}}})

    assert loaded.settings.listeners.tls["x"].sni["other.example"].cert_file == cert_file


@pytest.mark.parametrize("name", ["cert_file", "key_file"])
def test_a_tls_listener_needs_both_files(tls: dict[str, object], name: str) -> None:
    assert refusal("tls", {key: value for key, value in tls.items() if key != name}).key == f"listeners.tls.x.{name}"
    assert "there is no file /nowhere" in str(refusal("tls", tls | {name: "/nowhere"}))


def test_a_key_of_another_certificate_is_refused(tls: dict[str, object], tmp_path: Path) -> None:
    _, other_key = make_pair(tmp_path, "other")

    problem = refusal("tls", tls | {"key_file": other_key})

    assert problem.key == "listeners.tls.x.key_file"
    assert "is not the key of" in str(problem)


def test_a_key_with_a_password_is_refused_instead_of_asked_for(tls: dict[str, object], tmp_path: Path) -> None:
    cert_file, key_file = make_pair(tmp_path, "locked", b"hush")

    assert "is encrypted" in str(refusal("tls", tls | {"cert_file": cert_file, "key_file": key_file}))


def test_a_file_that_is_not_a_certificate_is_rejected(tls: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "rubbish").write_text("rubbish")

    assert "PEM" in str(refusal("tls", tls | {"cert_file": str(tmp_path / "rubbish")}))


def test_a_certificate_for_a_name_is_checked_too(tls: dict[str, object], tmp_path: Path) -> None:
    problem = refusal("tls", tls | {"sni": {"a.example": {"cert_file": "/nowhere", "key_file": "/nowhere"}}})

    assert problem.key == 'listeners.tls.x.sni."a.example".cert_file'


def test_checking_clients_needs_a_ca(tls: dict[str, object]) -> None:
    assert refusal("tls", tls | {"verify": "required"}).key == "listeners.tls.x.ca_file"
    assert refusal("tls", tls | {"crl_file": tls["cert_file"]}).key == "listeners.tls.x.crl_file"
    assert refusal("tls", tls | {"user_from_certificate": "cn"}).key == "listeners.tls.x.user_from_certificate"


@pytest.mark.parametrize(
    ("key", "value"), [("cert_file", "x"), ("verify", "required"), ("tls_min", "1.3"), ("path", "/m"), ("origins", ["*"])]
)
def test_keys_of_other_kinds_of_listeners_are_refused(key: str, value: object) -> None:
    problem = refusal("tcp", {"bind": "127.0.0.1:1", key: value})

    assert problem.key == f"listeners.tcp.x.{key}"
    assert "belongs to" in str(problem)


def test_the_path_of_a_websocket_starts_with_a_slash() -> None:
    assert refusal("ws", {"bind": "127.0.0.1:1", "path": "mqtt"}).key == "listeners.ws.x.path"


def test_origins_are_those_of_web_pages_or_a_star() -> None:
    loaded = load_listener("ws", {"bind": "127.0.0.1:1", "origins": ["https://app.example", "http://[::1]:3000", "*"]})
    assert loaded.settings.listeners.ws["x"].origins == ("https://app.example", "http://[::1]:3000", "*")

    for wrong in ("app.example", "https://app.example/", "https://*.example", "null", ""):
        problem = refusal("ws", {"bind": "127.0.0.1:1", "origins": ["https://app.example", wrong]})
        assert problem.key == "listeners.ws.x.origins"
        assert repr(wrong) in str(problem)


# -- addresses and files -----------------------------------------------------------------------------------------------


def test_two_listeners_cannot_share_an_address() -> None:
    tables = {"listeners": {"tcp": {"a": {"bind": "127.0.0.1:1883"}}, "ws": {"b": {"bind": "127.0.0.1:1883"}}}}

    with pytest.raises(ConfigError, match=r"listeners\.ws\.b\.bind: 127\.0\.0\.1:1883 is taken by listeners\.tcp\.a\.bind"):
        config.from_tables(tables)


def test_the_http_listener_counts_as_well() -> None:
    assert refusal("tcp", {"bind": "127.0.0.1:18083"}).key == "api.bind"
    assert load_listener("tcp", {"bind": "127.0.0.1:18083"}, api={"bind": ""}).notes == []


def test_an_invalid_bind_address_is_reported_with_its_key() -> None:
    assert refusal("tcp", {"bind": "1883"}).key == "listeners.tcp.x.bind"


def test_a_proxy_needs_peers_that_are_networks() -> None:
    assert refusal("tcp", {"bind": "127.0.0.1:1", "proxy_protocol": True}).key == "listeners.tcp.x.proxy_peers"
    assert "not a network" in str(refusal("tcp", {"bind": "127.0.0.1:1", "proxy_peers": ["10.0.0.0/33"]}))


@pytest.mark.parametrize("name", ["password_file", "acl_file"])
def test_a_file_that_is_not_there_stops_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match=f"access.{name}: there is no file /nowhere"):
        config.from_tables({"access": {name: "/nowhere"}})


# -- the history service -----------------------------------------------------------------------------------------------


def history_refusal(**history: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config.from_tables({"history": history})
    return caught.value


def test_a_history_service_that_others_can_reach_needs_to_know_who_may_read(tmp_path: Path) -> None:
    problem = history_refusal(bind="0.0.0.0:8815")

    assert problem.key == "history.bind"
    assert "access.password_file" in problem.hint

    (tmp_path / "passwords").touch()
    tables = {"history": {"bind": "0.0.0.0:8815"}, "access": {"password_file": str(tmp_path / "passwords")}}
    assert config.from_tables(tables).notes == []
    [note] = config.from_tables({"history": {"bind": "0.0.0.0:8815", "anonymous": "all"}}).notes
    assert "without credentials" in note


def test_the_files_of_its_tls_are_looked_at(tmp_path: Path) -> None:
    assert history_refusal(cert_file="a").key == "history.key_file"
    assert history_refusal(key_file="a").key == "history.cert_file"
    assert history_refusal(ca_file="a").key == "history.ca_file"
    assert history_refusal(cert_file=str(tmp_path / "none"), key_file=str(tmp_path / "none")).key == "history.cert_file"


def test_the_history_address_must_be_valid_and_not_that_of_a_listener() -> None:
    assert history_refusal(bind="nowhere").key == "history.bind"
    assert history_refusal(bind="127.0.0.1:1883").key == "history.bind"
    assert config.from_tables({"history": {"bind": ""}}).notes == []
