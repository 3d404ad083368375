"""Addresses to listen on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.config.addresses import Address, WebOrigin, clash, is_loopback, parse_address, parse_origin


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:1883", "127.0.0.1", 1883),
        ("0.0.0.0:1883", "0.0.0.0", 1883),
        (":1883", "", 1883),
        ("[::1]:1883", "::1", 1883),
        ("[::]:0", "::", 0),
        ("localhost:65535", "localhost", 65535),
        ("broker-1.example:8883", "broker-1.example", 8883),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1883", "has no port"),
        ("", "has no port"),
        ("127.0.0.1:", "not a port"),
        ("127.0.0.1:65536", "not a port"),
        ("127.0.0.1:-1", "not a port"),
        ("127.0.0.1:mqtt", "not a port"),
        ("::1:1883", r"in brackets: \[::1\]:1883"),
        ("[::g]:1883", "not an IPv6 address"),
        ("[127.0.0.1]:1883", "not an IPv6 address"),
        ("127.0.0.256:1883", "not an IPv4 address"),
        ("127.1:1883", "not an IPv4 address"),
        ("a b:1883", "not a host"),
        ("mqtt://host:1883", "not a host"),
    ],
)
def test_an_invalid_address_is_rejected_with_a_clear_message(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("h.example", False),
    ],
)
def test_only_addresses_of_this_machine_alone_are_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("127.0.0.1:1883", "127.0.0.1:1883", True),
        ("127.0.0.1:1883", "127.0.0.1:1884", False),
        ("127.0.0.1:1883", "127.0.0.2:1883", False),
        ("0.0.0.0:1883", "127.0.0.1:1883", True),
        (":1883", "[::1]:1883", True),
        ("[::]:1883", "127.0.0.1:1883", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_two_listeners_clash_where_a_second_bind_would_fail(one: str, other: str, expected: bool) -> None:
    assert clash(parse_address(one), parse_address(other)) is expected
    assert clash(parse_address(other), parse_address(one)) is expected


@given(st.one_of(st.ip_addresses().map(str), st.just(""), st.just("localhost")), st.integers(0, 65535))
def test_an_address_survives_writing_and_reading(host: str, port: int) -> None:
    address = Address(host, port)

    assert parse_address(str(address)) == address


# -- origins of web pages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://app.example", WebOrigin("https", "app.example", 443)),
        ("http://app.example", WebOrigin("http", "app.example", 80)),
        ("HTTP://App.Example:8080", WebOrigin("http", "app.example", 8080)),
        ("http://[2001:DB8:0::1]:3000", WebOrigin("http", "2001:db8::1", 3000)),
        ("capacitor://localhost", WebOrigin("capacitor", "localhost", None)),
    ],
)
def test_origins_are_read(text: str, origin: WebOrigin) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "*",
        "app.example",
        "//app.example",
        "https:app.example",
        "https://",
        "file://",
        "https://app.example/",
        "https://app.example/path",
        "https://app.example?",
        "https://user@app.example",
        "https://app.example:",
        "https://app.example:0",
        "https://app.example:65536",
        "https://app.example:443 ",
        "https://app.example\n",
        "https://[::g]",
        "https://[127.0.0.1]",
        "https://::1",
        "https://a.example, https://b.example",
        "https://\u0131.example",
        "https://app.example:\u0664",
        "https://" + "a" * 254,
    ],
)
def test_an_invalid_origin_is_reported(text: str) -> None:
    assert parse_origin(text) is None


@given(st.text())
def test_no_text_makes_reading_an_origin_fail(text: str) -> None:
    parse_origin(text)
    parse_origin(f"https://{text}")
