"""Certificates, CAs and revocation lists that change while the listener runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from braidmq.base.config.settings import CertificateSettings, Listeners, ListenerSettings, Settings
from braidmq.base.errors import ConfigError
from braidmq.broker.listeners import check_certificates
from braidmq.broker.listeners.tls import TlsContexts, build_context
from tests.support.certificates import Authority, Pair
from tests.support.echo_listeners import LOOPS, open_house, run
from tests.support.tls_house import assert_refused, content, echo, secured

CN, O, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME  # noqa: E741

both_loops = pytest.mark.parametrize("loop_name", LOOPS)


@both_loops
def test_a_reload_changes_new_handshakes_and_keeps_open_connections(loop_name: str, authority: Authority) -> None:
    server = authority.server("localhost", file_stem="served")
    first = content(server.cert_file)

    async def scenario() -> None:
        async with open_house(tls=secured(server)) as house:
            reader, writer = await asyncio.open_connection(
                *house.address("tls:default"), ssl=authority.client_context(), server_hostname="localhost"
            )
            authority.server("localhost", file_stem="served")
            await house.read_certificates_again()
            seen = (await echo(house, authority.client_context())).getpeercert(binary_form=True)

            assert seen is not None
            assert ssl.DER_cert_to_PEM_cert(seen).split() == content(server.cert_file).split() != first.split()
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            writer.close()

    run(loop_name, scenario())


@both_loops
def test_a_removed_ca_is_no_longer_trusted(loop_name: str, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "Other CA")
    pump = authority.client((CN, "pump"))
    stranger = other.client((CN, "stranger"))
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(content(authority.cert_file) + content(other.cert_file))

    async def scenario() -> None:
        settings = secured(authority.server(), ca_file=str(trusted), verify="required")
        async with open_house(tls=settings) as house:
            await echo(house, authority.client_context(stranger))
            await house.until(lambda: house.live("tls:default") == 0)

            trusted.write_text(content(authority.cert_file))
            await house.read_certificates_again()

            await assert_refused(house, authority.client_context(stranger), "tls_certificate")
            await echo(house, authority.client_context(pump))

    run(loop_name, scenario())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_revoked_client_cannot_resume_its_session_past_the_new_list(authority: Authority, version: ssl.TLSVersion) -> None:
    pump = authority.client((CN, "pump"))
    crl_file = authority.revoke()
    settings = secured(authority.server(), ca_file=authority.cert_file, verify="required", crl_file=crl_file)
    context = authority.client_context(pump)
    context.maximum_version = version

    def talk(address: tuple[str, int], session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with (
            socket.create_connection(address) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as tls,
        ):
            tls.sendall(b"word")
            if tls.recv(4) != b"word":
                raise ConnectionResetError
            return tls.session

    async def scenario() -> None:
        async with open_house(tls=settings) as house:
            address = house.address("tls:default")
            session = await asyncio.to_thread(talk, address, None)
            await house.until(lambda: house.live("tls:default") == 0)

            authority.revoke(pump.serial)
            await house.read_certificates_again()

            with pytest.raises(OSError):
                await asyncio.to_thread(talk, address, session)
            await house.until(lambda: house.refusals["tls_certificate"] == 1)

    run("uvloop", scenario())


@pytest.mark.parametrize(("verify", "is_resumed"), [("none", True), ("required", False)])
def test_only_a_listener_without_client_certificates_resumes_sessions_of_tls_13(
    authority: Authority, verify: str, is_resumed: bool
) -> None:
    keys = {"ca_file": authority.cert_file, "verify": verify} if verify != "none" else {}
    context = authority.client_context(authority.client((CN, "pump")))
    context.minimum_version = ssl.TLSVersion.TLSv1_3

    def talk(address: tuple[str, int], session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        raw = socket.create_connection(address)
        with context.wrap_socket(raw, server_hostname="localhost", session=session) as tls:
            tls.sendall(b"word")
            assert tls.recv(4) == b"word"
            return tls.session, tls.session_reused

    async def scenario() -> None:
        async with open_house(tls=secured(authority.server(), **keys)) as house:
            session, _ = await asyncio.to_thread(talk, house.address("tls:default"), None)
            _, resumed = await asyncio.to_thread(talk, house.address("tls:default"), session)
            assert bool(resumed) is is_resumed

    run("uvloop", scenario())


def test_changed_files_are_noticed_without_a_reload(authority: Authority) -> None:
    pump = authority.client((CN, "pump"))
    settings = secured(authority.server(), ca_file=authority.cert_file, verify="required", crl_file=authority.revoke())

    async def scenario() -> None:
        async with open_house(tls=settings, options={"certificate_poll_s": 0.02}) as house:
            await echo(house, authority.client_context(pump))
            authority.revoke(pump.serial)

            async with asyncio.timeout(5):
                while not house.refusals["tls_certificate"]:
                    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                        await echo(house, authority.client_context(pump))

    run("uvloop", scenario())


def test_a_broken_file_keeps_the_certificates_loaded_before_and_is_logged(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    server = authority.server("localhost", file_stem="served")
    contexts = TlsContexts("listeners.tls.default", secured(server))
    before = contexts.current

    Path(server.key_file).write_text("not a key")
    with caplog.at_level(logging.INFO, "braidmq.listeners"):
        assert not contexts.refresh()
        assert not contexts.refresh(), "the same broken file is not tried again"

    assert contexts.current is before
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "listeners.tls.default" in caplog.text

    authority.server("localhost", file_stem="served")
    assert contexts.refresh()
    assert contexts.current is not before


def test_a_first_load_that_fails_names_the_key_and_the_file(authority: Authority, tmp_path: Path) -> None:
    server, other = authority.server(), authority.server("other")
    crl_file = authority.revoke()
    encrypted = tmp_path / "encrypted.key"
    key = serialization.load_pem_private_key(Path(server.key_file).read_bytes(), None)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(content(crl_file) + content(other.cert_file))
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("nothing of use")
    verified = {"ca_file": authority.cert_file, "verify": "required"}
    wrong: dict[str, tuple[ListenerSettings, str]] = {
        "cert_file": (secured(Pair(str(tmp_path / "absent"), server.key_file, 0)), "No such file"),
        "key_file": (secured(Pair(server.cert_file, other.key_file, 0)), "is not the key of"),
        "key_file ": (secured(Pair(server.cert_file, str(encrypted), 0)), "encrypted"),
        "ca_file": (secured(server, verify="required"), "cannot read"),
        "ca_file ": (secured(server, verify="required", ca_file=str(garbage)), "cannot use"),
        "ca_file  ": (secured(server, verify="required", ca_file=server.cert_file), "no CA certificate"),
        "crl_file": (secured(server, crl_file=str(garbage), **verified), "cannot use"),
        "crl_file ": (secured(server, crl_file=authority.cert_file, **verified), "revocation lists"),
        "crl_file  ": (secured(server, crl_file=str(mixed), **verified), "revocation lists"),
        "sni.one.cert_file": (
            secured(server, sni={"one": CertificateSettings(cert_file="absent", key_file="absent")}),
            "cannot read absent",
        ),
    }

    for key_name, (settings, words) in wrong.items():
        with pytest.raises(ConfigError, match=words) as caught:
            build_context("listeners.tls.default", settings)
        assert caught.value.key == f"listeners.tls.default.{key_name.strip()}"
    with pytest.raises(ConfigError):
        check_certificates(Settings(listeners=Listeners(wss={"default": wrong["crl_file"][0]})))
    check_certificates(Settings(listeners=Listeners(wss={"default": secured(server, crl_file=crl_file, **verified)})))
