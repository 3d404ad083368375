"""SCRAM-SHA-256 with a client of our own: right and wrong passwords, unknown users, broken messages."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.access.scram import ScramExchange, ScramKeys, format_keys, make_keys, parse_keys
from braidmq.mqtt.reasons import Reason
from tests.access.logins import login, run
from tests.access.scram_client import ScramClient

KEYS = {"alice": make_keys("secret"), "a,b=c": make_keys("comma")}


def exchange(credentials: Credentials | None = None) -> ScramExchange:
    return ScramExchange(credentials or login(), KEYS.get, b"decoy key")


async def complete(client: ScramClient, credentials: Credentials | None = None) -> tuple[bytes, Verdict | None]:
    server = exchange(credentials)
    server_first, verdict = await server.step(client.first())
    assert verdict is None
    return await server.step(client.final(server_first))


@pytest.mark.parametrize(("user", "password"), [("alice", "secret"), ("a,b=c", "comma")])
def test_the_right_password_is_granted_and_the_server_proves_itself(user: str, password: str) -> None:
    client = ScramClient(user, password)

    server_final, verdict = run(complete(client))

    assert verdict == Granted(user)
    assert client.is_server_genuine(server_final)


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "secret")])
def test_a_wrong_password_and_an_unknown_user_fail_alike(user: str, password: str) -> None:
    server_final, verdict = run(complete(ScramClient(user, password)))

    assert server_final == b"e=invalid-proof"
    assert isinstance(verdict, Refused)
    assert verdict.reason == Reason.NOT_AUTHORIZED


def test_an_unknown_user_has_always_the_same_salt_and_the_form_of_a_known_one() -> None:
    async def server_first(user: str) -> dict[str, str]:
        data, _ = await exchange().step(ScramClient(user, "x").first())
        return dict(part.split("=", 1) for part in data.decode().split(","))

    known, once, again, other = (run(server_first(user)) for user in ("alice", "nobody", "nobody", "nobody2"))

    assert once["s"] == again["s"] != other["s"]
    assert len(base64.b64decode(once["s"])) == len(base64.b64decode(known["s"]))
    assert once["i"] == known["i"]
    assert once["r"] != again["r"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=alice",
        b"n,,r=abc",
        b"y,,n=,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n" * 5000,
    ],
)
def test_a_broken_first_message_is_refused(data: bytes) -> None:
    answer, verdict = run(exchange().step(data))

    assert answer == b""
    assert isinstance(verdict, Refused)
    assert verdict.reason == Reason.NOT_AUTHORIZED


@pytest.mark.parametrize("data", [b"", b"rubbish", b"c=biws,r=other,p=AAAA", b"c=biws", b"\xff", b"c=biws,r=x,p=%%%"])
def test_a_broken_final_message_is_refused(data: bytes) -> None:
    async def scenario() -> Verdict | None:
        server = exchange()
        await server.step(ScramClient("alice", "secret").first())
        return (await server.step(data))[1]

    assert isinstance(run(scenario()), Refused)


def test_an_old_final_message_cannot_be_played_again() -> None:
    async def scenario() -> Verdict | None:
        client, server = ScramClient("alice", "secret"), exchange()
        server_first, _ = await server.step(client.first())
        final = client.final(server_first)
        assert (await server.step(final))[1] == Granted("alice")

        again = exchange()
        await again.step(client.first())
        return (await again.step(final))[1]

    assert isinstance(run(scenario()), Refused)


def test_a_finished_exchange_grants_nothing_more() -> None:
    async def scenario() -> Verdict | None:
        client, server = ScramClient("alice", "secret"), exchange()
        server_first, _ = await server.step(client.first())
        final = client.final(server_first)
        await server.step(final)
        return (await server.step(final))[1]

    assert isinstance(run(scenario()), Refused)


@pytest.mark.parametrize("credentials", [login("bob"), login("alice", certificate_name="bob")])
def test_the_exchange_must_be_for_the_user_of_the_connection(credentials: Credentials) -> None:
    _, verdict = run(exchange(credentials).step(ScramClient("alice", "secret").first()))

    assert isinstance(verdict, Refused)


def test_reauthentication_as_the_same_user_is_granted() -> None:
    assert run(complete(ScramClient("alice", "secret"), login("alice")))[1] == Granted("alice")


def test_keys_survive_being_written_and_read() -> None:
    keys = KEYS["alice"]

    assert parse_keys(format_keys(keys)) == keys
    assert format_keys(keys).startswith("$scram-sha-256$i=4096$")


def test_the_keys_of_the_example_in_rfc_7677_are_derived_as_it_says() -> None:
    # Section 3: user "user", password "pencil"; the server's signature over that exchange is known.
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    keys = ScramKeys(4096, salt, stored_key, hmac.digest(salted, b"Server Key", "sha256"))
    first = "n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server_first = f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    message = f"{first},{server_first},c=biws,r={nonce}".encode()

    signature = hmac.digest(parse_keys(format_keys(keys)).server_key, message, "sha256")

    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_keys_are_not_shown() -> None:
    assert KEYS["alice"].salt.hex() not in repr(KEYS["alice"])
    assert "b'" not in repr(KEYS["alice"])
