"""Floods of TLS handshakes that never finish, and revoked certificates."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from braidmq.mqtt.packets import MQTT311
from tests.support.certificates import Authority, Pair
from tests.support.clients import raw
from tests.support.clients.exchanges import tls_exchange
from tests.support.stage import Stage, wait_until

Start = Callable[..., Stage]

CONNECT = raw.connect(MQTT311, client_id=b"")
ACCEPTED = b"\x20\x02\x00\x00"
HALF_A_HELLO = b"\x16\x03\x01\x40\x00" + bytes(8000)
LOCAL = {"bind": "127.0.0.1:0"}
HANDSHAKES_MAX = 8


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The CA that the TLS listener and its clients trust."""
    return Authority(tmp_path)


def secured(server: Pair, **keys: Any) -> dict[str, Any]:
    """Tables for a TLS listener beside a plain one; handshakes have a minute."""
    files = {"cert_file": server.cert_file, "key_file": server.key_file}
    listeners = {"tcp": {"default": LOCAL}, "tls": {"default": LOCAL | files | keys}}
    return {"listeners": listeners, "limits": {"connect_timeout": "60s", "handshakes_max": HANDSHAKES_MAX}}


def address_of(stage: Stage) -> tuple[str, int]:
    """Where the TLS listener is."""
    return stage.broker.host, stage.broker.ports["tls:default"]


def is_let_in(stage: Stage, authority: Authority, pair: Pair | None = None) -> bool:
    """Whether a client gets through the handshake, and its CONNECT is accepted."""
    try:
        return tls_exchange(address_of(stage), authority.client_context(pair), CONNECT) == ACCEPTED
    except OSError:
        return False


@pytest.mark.row(62)
@pytest.mark.parametrize("said", [b"", HALF_A_HELLO], ids=["silent", "half a hello"])
def test_stalled_handshakes_are_bounded_and_other_clients_get_through(start: Start, authority: Authority, said: bytes) -> None:
    stage = start(**secured(authority.server()))
    plain = stage.connect()

    with contextlib.ExitStack() as stack:
        for _ in range(5 * HANDSHAKES_MAX):
            stack.enter_context(socket.create_connection(address_of(stage))).sendall(said)
        plain.ping()
        assert is_let_in(stage, authority)
        if said:
            wait_until(lambda: stage.refusals().get("tls_crowded", 0) > 4 * HANDSHAKES_MAX, "the oldest gave way")
        assert is_let_in(stage, authority)
        plain.ping()
    stage.close()


@pytest.mark.row(62)
def test_a_revoked_client_certificate_fails_after_the_list_is_reloaded(start: Start, authority: Authority) -> None:
    device = authority.client((NameOID.COMMON_NAME, "device"))
    keys = {"ca_file": authority.cert_file, "verify": "required", "crl_file": authority.revoke()}
    stage = start(**secured(authority.server(), **keys))
    assert is_let_in(stage, authority, device)

    authority.revoke(device.serial)  # in the same file
    node = stage.broker.node
    assert node is not None
    stage.broker.run(node.listeners.reconfigure(node.settings))

    assert not is_let_in(stage, authority, device)
    assert stage.refusals() == {"tls_certificate": 1}
    assert is_let_in(stage, authority, authority.client((NameOID.COMMON_NAME, "other")))


@pytest.mark.row(62)
def test_a_client_of_a_revoked_authority_fails(start: Start, authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "plant"
    folder.mkdir()
    plant = Authority(folder, "Plant CA", issuer=authority)
    device = plant.client((NameOID.COMMON_NAME, "device"))
    authorities, lists = folder / "authorities.pem", folder / "lists.pem"
    authorities.write_text(Path(authority.cert_file).read_text() + Path(plant.cert_file).read_text())
    lists.write_text(Path(authority.revoke(plant.serial)).read_text() + Path(plant.revoke()).read_text())
    stage = start(**secured(authority.server(), ca_file=str(authorities), crl_file=str(lists), verify="required"))

    assert not is_let_in(stage, authority, device)
    assert stage.refusals() == {"tls_certificate": 1}
