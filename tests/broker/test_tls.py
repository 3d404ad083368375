"""TLS listeners on real sockets: who gets in, what a failed handshake leaves behind, and reloading without a disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from braidmq.base.errors import ConfigError
from braidmq.base.settings import CertificateSettings, LimitSettings, Listeners, ListenerSettings, Settings
from braidmq.base.units import Seconds
from braidmq.broker.listeners import check_certificates
from braidmq.broker.listeners.certificate_name import common_name, distinguished_name
from braidmq.broker.listeners.tls import TlsContexts, build_context
from tests.support.certificates import Authority, Pair
from tests.support.echo_listeners import LOOPS, EchoHouse, open_house, run

CN, O, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME  # noqa: E741

both_loops = pytest.mark.parametrize("loop_name", LOOPS)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secured(server: Pair, **keys: Any) -> ListenerSettings:
    return ListenerSettings(bind="127.0.0.1:0", cert_file=server.cert_file, key_file=server.key_file, **keys)


def content(file_name: str) -> str:
    return Path(file_name).read_text()


async def echo(house: EchoHouse, context: ssl.SSLContext, server_name: str = "localhost") -> ssl.SSLObject:
    """Connect, have a word echoed, leave; raises whatever the client sees of a refused handshake."""
    reader, writer = await asyncio.open_connection(*house.address("tls:default"), ssl=context, server_hostname=server_name)
    try:
        writer.write(b"word")
        assert await reader.readexactly(4) == b"word"
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return tls
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def assert_refused(house: EchoHouse, context: ssl.SSLContext, reason: str, server_name: str = "localhost") -> None:
    """The client fails, the reason is counted, no connection was made and the place is free again."""
    made, counted = len(house.connections), house.refusals[reason]
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await echo(house, context, server_name)
    await house.until(lambda: house.refusals[reason] == counted + 1 and house.live("tls:default") == 0)
    assert len(house.connections) == made


@both_loops
def test_a_client_that_trusts_the_server_gets_through(loop_name: str, authority: Authority) -> None:
    async def scenario() -> None:
        async with open_house(tls=secured(authority.server())) as house:
            await echo(house, authority.client_context())

            origin = house.connections[0].origin
            assert (origin.kind, origin.secure, origin.peer_host, origin.certificate_name) == ("tls", True, "127.0.0.1", None)
            await house.until(lambda: house.live("tls:default") == 0)

    run(loop_name, scenario())


@both_loops
def test_much_data_passes_in_order(loop_name: str, authority: Authority) -> None:
    payload = os.urandom(500_000)

    async def scenario() -> None:
        async with open_house(tls=secured(authority.server())) as house:
            reader, writer = await asyncio.open_connection(
                *house.address("tls:default"), ssl=authority.client_context(), server_hostname="localhost"
            )
            writer.write(payload)
            assert await reader.readexactly(len(payload)) == payload
            writer.close()

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize(("form", "name"), [("cn", "pump, 7"), ("dn", "CN=pump\\, 7,OU=Well,O=Example"), ("", None)])
def test_a_verified_certificate_gives_the_client_its_name(
    loop_name: str, authority: Authority, form: str, name: str | None
) -> None:
    pump = authority.client((O, "Example"), (OU, "Well"), (CN, "pump, 7"))

    async def scenario() -> None:
        settings = secured(authority.server(), ca_file=authority.cert_file, verify="required", user_from_certificate=form)
        async with open_house(tls=settings) as house:
            await echo(house, authority.client_context(pump))

            assert house.connections[0].origin.certificate_name == name

    run(loop_name, scenario())


@both_loops
def test_without_a_certificate_an_optional_listener_has_no_name_and_a_required_one_refuses(
    loop_name: str, authority: Authority
) -> None:
    async def scenario() -> None:
        server = authority.server()
        optional = secured(server, ca_file=authority.cert_file, verify="optional", user_from_certificate="cn")
        async with open_house(tls=optional) as house:
            await echo(house, authority.client_context())
            assert house.connections[0].origin.certificate_name is None

        async with open_house(tls=secured(server, ca_file=authority.cert_file, verify="required")) as house:
            await assert_refused(house, authority.client_context(), "tls_certificate")

    run(loop_name, scenario())


@both_loops
@pytest.mark.parametrize("verify", ["optional", "required"])
def test_an_expired_or_foreign_certificate_is_refused(loop_name: str, authority: Authority, tmp_path: Path, verify: str) -> None:
    expired = authority.client((CN, "old"), expired=True)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "Other CA")
    foreign = other.client((CN, "stranger"))

    async def scenario() -> None:
        async with open_house(tls=secured(authority.server(), ca_file=authority.cert_file, verify=verify)) as house:
            await assert_refused(house, authority.client_context(expired), "tls_certificate")
            await assert_refused(house, authority.client_context(foreign), "tls_certificate")

    run(loop_name, scenario())


@both_loops
def test_a_server_certificate_does_not_pass_for_a_client(loop_name: str, authority: Authority) -> None:
    server = authority.server()

    async def scenario() -> None:
        async with open_house(tls=secured(server, ca_file=authority.cert_file, verify="required")) as house:
            await assert_refused(house, authority.client_context(server), "tls_certificate")

    run(loop_name, scenario())


@both_loops
def test_a_revoked_certificate_is_refused_and_an_outdated_list_refuses_all(loop_name: str, authority: Authority) -> None:
    good, bad = authority.client((CN, "good")), authority.client((CN, "bad"))

    async def scenario() -> None:
        server = authority.server()
        keys = {"ca_file": authority.cert_file, "verify": "required"}
        async with open_house(tls=secured(server, crl_file=authority.revoke(bad.serial), **keys)) as house:
            await echo(house, authority.client_context(good))
            await assert_refused_after_leaving(house, authority.client_context(bad))

        async with open_house(tls=secured(server, crl_file=authority.revoke(expired=True), **keys)) as house:
            await assert_refused(house, authority.client_context(good), "tls_certificate")

    async def assert_refused_after_leaving(house: EchoHouse, context: ssl.SSLContext) -> None:
        await house.until(lambda: house.live("tls:default") == 0)
        await assert_refused(house, context, "tls_certificate")

    run(loop_name, scenario())


@both_loops
def test_the_name_that_the_client_asks_for_chooses_the_certificate(loop_name: str, authority: Authority) -> None:
    def entry(host: str) -> CertificateSettings:
        pair = authority.server(host)
        return CertificateSettings(cert_file=pair.cert_file, key_file=pair.key_file)

    async def scenario() -> None:
        sni = {"one.example": entry("one.example"), "*.two.example": entry("*.two.example")}
        async with open_house(tls=secured(authority.server(), sni=sni)) as house:

            async def served(server_name: str) -> str:
                certificate = (await echo(house, authority.client_context(), server_name)).getpeercert()
                assert certificate is not None
                return certificate["subject"][0][0][1]

            assert await served("one.example") == "one.example"
            assert await served("ONE.example") == "one.example"
            assert await served("deep.two.example") == "*.two.example"
            # An address is not sent as a server name: the certificate of the listener itself answers.
            assert await served("127.0.0.1") == "localhost"

            await house.until(lambda: house.live("tls:default") == 0)
            await assert_refused(house, authority.client_context(), "tls_server_name", "three.example")
            await assert_refused(house, authority.client_context(), "tls_server_name", "a.deep.two.example")

    run(loop_name, scenario())


@both_loops
def test_a_client_certificate_is_verified_under_every_server_name(loop_name: str, authority: Authority) -> None:
    pair = authority.server("one.example")
    pump = authority.client((CN, "pump"))

    async def scenario() -> None:
        sni = {"one.example": CertificateSettings(cert_file=pair.cert_file, key_file=pair.key_file)}
        settings = secured(
            authority.server(), sni=sni, ca_file=authority.cert_file, verify="required", crl_file=authority.revoke(pump.serial)
        )
        async with open_house(tls=settings) as house:
            await assert_refused(house, authority.client_context(), "tls_certificate", "one.example")
            await assert_refused(house, authority.client_context(pump), "tls_certificate", "one.example")

    run(loop_name, scenario())


@both_loops
def test_a_client_below_the_least_version_is_refused(loop_name: str, authority: Authority) -> None:
    async def scenario() -> None:
        old = authority.client_context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        async with open_house(tls=secured(authority.server(), tls_min="1.3")) as house:
            await assert_refused(house, old, "tls_version")
        async with open_house(tls=secured(authority.server(), tls_min="1.2")) as house:
            assert (await echo(house, old)).version() == "TLSv1.2"

    run(loop_name, scenario())


# A hello of TLS 1.0 with one cipher suite, as the client would send it.
TLS10_HELLO = bytes.fromhex(
    "160301002d0100002903010000000000000000000000000000000000000000000000000000000000000000000002c0140100"
)


@both_loops
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd", "tls_not_tls"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "tls_not_tls"),
        (TLS10_HELLO, "tls_version"),
    ],
    ids=["mqtt", "http", "tls 1.0"],
)
def test_plain_bytes_and_old_versions_end_the_connection(loop_name: str, authority: Authority, said: bytes, reason: str) -> None:
    async def scenario() -> None:
        async with open_house(tls=secured(authority.server())) as house:
            reader, writer = await asyncio.open_connection(*house.address("tls:default"))
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                answer = await reader.read()
                assert answer == b"" or answer[0] == 0x15, "at most an alert"
            await house.until(lambda: house.refusals[reason] == 1 and house.live("tls:default") == 0)
            assert not house.connections
            writer.close()

    run(loop_name, scenario())


@both_loops
def test_a_client_that_stays_silent_or_leaves_is_counted_and_leaves_nothing(loop_name: str, authority: Authority) -> None:
    async def scenario() -> None:
        async with open_house(tls=secured(authority.server()), limits=LimitSettings(connect_timeout=Seconds(0.2))) as house:
            reader, writer = await asyncio.open_connection(*house.address("tls:default"))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await house.until(lambda: house.refusals["tls_timeout"] == 1 and house.live("tls:default") == 0)
            writer.close()

            _, leaver = await asyncio.open_connection(*house.address("tls:default"))
            leaver.write(TLS10_HELLO[:20])
            await leaver.drain()
            leaver.close()
            await house.until(lambda: house.refusals["tls_closed"] == 1 and house.live("tls:default") == 0)

    run(loop_name, scenario())


def test_hundreds_of_failed_handshakes_leave_no_tasks_and_no_places(authority: Authority) -> None:
    async def scenario() -> None:
        async with open_house(tls=secured(authority.server())) as house:
            before = len(asyncio.all_tasks())
            for number in range(1, 11):
                writers = [(await asyncio.open_connection(*house.address("tls:default")))[1] for _ in range(30)]
                for writer in writers:
                    writer.write(b"not a hello at all")
                await house.until(lambda number=number: house.refusals["tls_not_tls"] == 30 * number)  # type: ignore[misc]
                for writer in writers:
                    writer.close()
            await house.until(lambda: house.live("tls:default") == 0)
            await asyncio.sleep(0)

            assert len(asyncio.all_tasks()) == before
            assert not house.connections

    run("uvloop", scenario())


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
            await house.listeners.reload_certificates()
            seen = (await echo(house, authority.client_context())).getpeercert(binary_form=True)

            assert seen is not None
            assert ssl.DER_cert_to_PEM_cert(seen).split() == content(server.cert_file).split() != first.split()
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            writer.close()

    run(loop_name, scenario())


@both_loops
def test_a_ca_that_is_taken_away_is_no_longer_trusted(loop_name: str, authority: Authority, tmp_path: Path) -> None:
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
            await house.listeners.reload_certificates()

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
            await house.listeners.reload_certificates()

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


def test_changed_files_are_noticed_without_being_told(authority: Authority) -> None:
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


def test_names_are_taken_from_subjects_that_leave_no_doubt() -> None:
    assert common_name(((("commonName", "pump"),),)) == "pump"
    assert common_name(((("commonName", "pump"),), (("commonName", "admin"),))) is None
    assert common_name(((("organizationName", "Example"),),)) is None
    assert common_name(((("commonName", "pump\x00admin"),),)) is None
    assert common_name(((("commonName", ""),),)) is None
    assert distinguished_name(()) is None
    assert distinguished_name(
        (
            (("countryName", "DE"),),
            (
                ("organizationName", "A+B"),
                ("commonName", "#x "),
            ),
        )
    ) == ("O=A\\+B+CN=\\#x\\ ,C=DE")
    assert distinguished_name(((("commonName", "a\nb"),),)) is None
