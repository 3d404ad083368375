"""Which web pages may open a WebSocket: the rule, and the rule on real sockets."""

from __future__ import annotations

import asyncio
import logging

import pytest

from braidmq.base.config.settings import Listeners, ListenerSettings, Settings
from braidmq.broker.listeners.web_origins import WebOrigins
from tests.broker.listeners.echo_client import LOCAL, answer_to, both_loops
from tests.support.clients.transports import upgrade_request
from tests.support.echo_listeners import open_house, run


def admits(origin: str, host: str, *allowed: str, is_local: bool) -> bool:
    return WebOrigins(allowed).admits([origin], [host], is_local=is_local)


# -- nothing configured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
def test_a_client_that_sends_no_origin_gets_in(is_local: bool) -> None:
    assert WebOrigins(()).admits([], ["broker.example:8083"], is_local=is_local)
    assert WebOrigins(("https://app.example",)).admits([], [], is_local=is_local)


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "https://LOCALHOST",
        "http://127.0.0.1:8083",
        "http://127.8.9.10",
        "http://[::1]:5173",
        "http://[0:0:0:0:0:0:0:1]",
    ],
)
def test_on_loopback_every_page_of_this_machine_gets_in(origin: str) -> None:
    assert admits(origin, "localhost:8083", is_local=True)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "127.0.0.1:8083"),
        ("http://evil.example:8083", "evil.example:8083"),
        ("http://localhost.evil.example", "localhost:8083"),
        ("http://127.0.0.1.evil.example", "127.0.0.1:8083"),
        ("http://127.1", "127.1"),
        ("http://192.0.2.7:8083", "192.0.2.7:8083"),
        ("http://[2001:db8::1]", "[::1]:8083"),
    ],
    ids=["other page", "rebound name", "begins as localhost", "begins as 127.0.0.1", "short form", "address", "IPv6 address"],
)
def test_on_loopback_no_other_page_gets_in_even_if_host_agrees(origin: str, host: str) -> None:
    assert not admits(origin, host, is_local=True)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://broker.example", "broker.example"),
        ("https://broker.example", "broker.example:443"),
        ("http://broker.example:80", "broker.example"),
        ("HTTPS://Broker.Example:8084", "bROKER.example:8084"),
        ("http://[2001:DB8::1]:8083", "[2001:db8::1]:8083"),
        ("http://localhost:8083", "localhost:8083"),
    ],
)
def test_beyond_loopback_a_page_of_the_very_host_and_port_gets_in(origin: str, host: str) -> None:
    assert admits(origin, host, is_local=False)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "broker.example"),
        ("https://broker.example", "broker.example:8084"),
        ("https://broker.example", "broker.example:80"),
        ("http://broker.example.evil.example", "broker.example"),
        ("http://localhost:3000", "broker.example:8083"),
        ("https://broker.example", ""),
        ("https://broker.example", "user@broker.example"),
        ("https://broker.example", "broker.example/"),
    ],
)
def test_beyond_loopback_every_other_page_is_refused(origin: str, host: str) -> None:
    assert not admits(origin, host, is_local=False)


# -- listed origins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_local", [True, False])
def test_with_a_list_exactly_its_pages_get_in(is_local: bool) -> None:
    listed = ("https://app.example", "http://tools.example:8080", "capacitor://localhost")

    for origin in ("https://app.example", "https://APP.example:443", "http://tools.example:8080", "capacitor://localhost"):
        assert admits(origin, "broker.example:8083", *listed, is_local=is_local)
    for origin in ("http://app.example", "https://app.example:8443", "https://x.app.example", "http://localhost:3000"):
        assert not admits(origin, "localhost:3000", *listed, is_local=is_local)
    assert not admits("http://broker.example", "broker.example", *listed, is_local=is_local)


@pytest.mark.parametrize("origin", ["null", "", "*", "https://", "https://a b", "https://a.example/", "x" * 100_000])
def test_an_invalid_origin_is_accepted_only_by_a_star(origin: str) -> None:
    for listed in ((), ("https://app.example",)):
        assert not admits(origin, origin, *listed, is_local=True)
        assert not admits(origin, origin, *listed, is_local=False)
    assert admits(origin, "broker.example", "https://app.example", "*", is_local=False)


def test_two_origins_or_two_hosts_are_rejected() -> None:
    same = "http://localhost"

    assert not WebOrigins(()).admits([same, same], ["localhost"], is_local=True)
    assert not WebOrigins((same,)).admits([same, "https://evil.example"], ["localhost"], is_local=True)
    assert not WebOrigins(()).admits([same], ["localhost", "localhost"], is_local=False)


# -- on sockets --------------------------------------------------------------------------------------------------------


async def is_upgraded(address: tuple[str, int], **headers: str) -> bool:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(upgrade_request(**headers))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return head.startswith(b"HTTP/1.1 101 ")


@both_loops
def test_a_page_from_elsewhere_gets_403_and_no_connection(loop_name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "braidmq.listeners")

    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house:
            answer = await answer_to(house, upgrade_request(Origin="https://evil.example", Host="evil.example:8083"))

            assert answer.startswith(b"HTTP/1.1 403 ")
            await house.until(lambda: house.refusals["ws_origin"] == 1 and house.live("ws:default") == 0)
            assert house.refusals.total() == 1
            assert not house.connections
            assert "ws:default: connection refused (ws_origin): pages from 'https://evil.example'" in caplog.text
            assert await is_upgraded(house.address("ws:default"), Origin="http://localhost:3000")

    run(loop_name, scenario())


def test_an_origin_that_is_not_text_is_rejected_like_any_other() -> None:
    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house:
            sent = upgrade_request(Origin="http://PLACE").replace(b"PLACE", b"\xff\x80" + b"x" * 500)

            assert (await answer_to(house, sent)).startswith(b"HTTP/1.1 403 ")
            assert house.refusals == {"ws_origin": 1}

    run("uvloop", scenario())


@both_loops
def test_a_listener_that_others_can_reach_takes_pages_of_its_own_host(loop_name: str) -> None:
    async def scenario() -> None:
        async with open_house(ws=ListenerSettings(bind="0.0.0.0:0")) as house:
            address = ("127.0.0.1", house.address("ws:default")[1])

            assert await is_upgraded(address, Origin="https://broker.example", Host="broker.example")
            assert not await is_upgraded(address, Origin="http://localhost:3000", Host="broker.example")

    run(loop_name, scenario())


def test_a_listener_behind_a_proxy_counts_as_one_that_others_can_reach() -> None:
    behind = ListenerSettings(bind="127.0.0.1:0", proxy_protocol=True, proxy_peers=("127.0.0.1",))

    async def scenario() -> None:
        async with open_house(ws=behind) as house:
            reader, writer = await asyncio.open_connection(*house.address("ws:default"))
            header = b"PROXY TCP4 203.0.113.9 10.0.0.5 40000 8083\r\n"
            writer.write(header + upgrade_request(Origin="https://broker.example", Host="broker.example"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            writer.close()

    run("uvloop", scenario())


def test_a_reload_takes_over_the_origins() -> None:
    listed = ListenerSettings(bind="127.0.0.1:0", origins=("https://app.example",))

    async def scenario() -> None:
        async with open_house(ws=LOCAL) as house:
            address = house.address("ws:default")
            assert not await is_upgraded(address, Origin="https://app.example")

            await house.listeners.reconfigure(Settings(listeners=Listeners(ws={"default": listed})))

            assert await is_upgraded(address, Origin="https://app.example")
            assert not await is_upgraded(address, Origin="http://localhost:3000")

    run("uvloop", scenario())
