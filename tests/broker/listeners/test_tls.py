"""TLS listeners on real sockets: who gets in, what a failed handshake leaves behind, and reloading without a disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path

import pytest
from cryptography.x509.oid import NameOID

from braidmq.base.config.settings import CertificateSettings, LimitSettings
from braidmq.base.units import Seconds
from braidmq.broker.listeners.certificate_name import common_name, distinguished_name
from tests.support.certificates import Authority
from tests.support.echo_listeners import LOOPS, EchoHouse, open_house, run
from tests.support.tls_house import assert_refused, content, echo, secured

CN, O, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME  # noqa: E741

both_loops = pytest.mark.parametrize("loop_name", LOOPS)


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


def test_a_certificate_of_a_revoked_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "plant"
    folder.mkdir()
    plant = Authority(folder, "Plant CA", issuer=authority)
    device, other = plant.client((CN, "device")), authority.client((CN, "other"))
    both = folder / "both.pem"
    both.write_text(content(authority.cert_file) + content(plant.cert_file))

    def lists(*revoked: int) -> str:
        file = folder / f"lists-{len(revoked)}.pem"
        file.write_text(content(authority.revoke(*revoked)) + content(plant.revoke()))
        return str(file)

    async def scenario() -> None:
        keys = {"ca_file": str(both), "verify": "required"}
        async with open_house(tls=secured(authority.server(), crl_file=lists(), **keys)) as house:
            await echo(house, authority.client_context(device))
        async with open_house(tls=secured(authority.server(), crl_file=lists(plant.serial), **keys)) as house:
            await assert_refused(house, authority.client_context(device), "tls_certificate")
            await echo(house, authority.client_context(other))

    run("uvloop", scenario())


def test_a_revocation_list_of_the_signing_authority_is_enough_and_the_log_names_its_gaps(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "plant"
    folder.mkdir()
    plant = Authority(folder, "Plant CA", issuer=authority)
    good, bad = plant.client((CN, "good")), plant.client((CN, "bad"))
    both = folder / "both.pem"
    both.write_text(content(authority.cert_file) + content(plant.cert_file))

    async def scenario() -> None:
        keys = {"ca_file": str(both), "verify": "required", "crl_file": plant.revoke(bad.serial)}
        async with open_house(tls=secured(authority.server(), **keys)) as house:
            await echo(house, authority.client_context(good))
            await house.until(lambda: house.live("tls:default") == 0)
            await assert_refused(house, authority.client_context(bad), "tls_certificate")

    run("uvloop", scenario())

    assert "no revocation list of CN=Test CA, so revoked authorities are not detected" in caplog.text


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


def test_names_are_taken_only_from_unambiguous_subjects() -> None:
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
