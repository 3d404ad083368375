"""Addresses, credentials and their absence from every text."""

from __future__ import annotations

import pytest

from braidmq.base.errors import UsageError
from braidmq.flight.access import Access, parse_servers


@pytest.mark.parametrize(
    ("servers", "locations"),
    [
        ("localhost:8815", ["grpc://localhost:8815"]),
        ("localhost", ["grpc://localhost:8815"]),
        ("a:1, b:2 ,a:1", ["grpc://a:1", "grpc://b:2"]),
        (["grpc+tls://a:1", "grpc://b:2", "grpc+tcp://c:3"], ["grpc+tls://a:1", "grpc://b:2", "grpc://c:3"]),
        ("[::1]:9000", ["grpc://[::1]:9000"]),
        ("[::1]", ["grpc://[::1]:8815"]),
    ],
)
def test_addresses_are_read(servers: str | list[str], locations: list[str]) -> None:
    assert parse_servers(servers) == locations


def test_addresses_without_a_scheme_are_of_tls_if_anything_of_tls_is_given() -> None:
    assert parse_servers("a,grpc://b", tls=Access(ca_file="ca.pem").wants_tls) == ["grpc+tls://a:8815", "grpc://b:8815"]
    assert not Access(user="ann").wants_tls


@pytest.mark.parametrize("servers", ["", " , ", "http://a:1", "a:0", "a:65536", "a:b", "::1", "a/b:1", ":1", []])
def test_an_invalid_address_is_rejected(servers: str | list[str]) -> None:
    with pytest.raises(UsageError):
        parse_servers(servers)


def test_credentials_in_an_address_are_refused_without_repeating_them() -> None:
    with pytest.raises(UsageError, match="must not contain credentials") as caught:
        parse_servers("ann:s3cret@a:1")

    assert "s3cret" not in str(caught.value)


def test_access_objects_do_not_show_their_secrets() -> None:
    access = Access(user="ann", password="s3cret", token="t0ken")

    shown = repr(access) + str(access) + f"{access!r}" + str(list(access.__rich_repr__()))

    assert "ann" in shown
    assert "s3cret" not in shown
    assert "t0ken" not in shown


@pytest.mark.parametrize(
    "access",
    [
        Access(user="ann", token="t"),
        Access(password="p"),
        Access(cert_file="c"),
        Access(key_file="k"),
    ],
)
def test_contradictory_options_are_rejected(access: Access) -> None:
    with pytest.raises(UsageError):
        access.check()
