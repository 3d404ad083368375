"""``POST /register``: who may register an endpoint, and what it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from braidmq.api.registration import SIGNATURE_HEADER, TIME_HEADER, EndpointRegistration, registration_routes, sign
from braidmq.base.errors import UsageError

ENDPOINT = "10.0.0.7:1883"
NOW = int(time.time())  # of the import; the tests may run much later
HOUR = 3600


def post(endpoint: str = ENDPOINT, remote: str = "127.0.0.1", secret: str = "s", headers: Mapping[str, str] | None = None) -> int:
    """The status of the answer."""
    asked: list[str] = []

    async def register(address: str) -> EndpointRegistration:
        asked.append(address)
        return EndpointRegistration(7, ["10.0.0.1:4370"])

    async def scenario() -> int:
        request = make_mocked_request("POST", f"/register?endpoint={endpoint}", headers=headers or {})
        with mock.patch.object(type(request), "remote", remote):
            answer = await registration_routes(register, secret)[0].handler(request)
        assert (answer.status == 200) == (asked == [endpoint])
        assert isinstance(answer, web.Response)
        if answer.status == 200:
            assert answer.body == b'{"reg_id":7,"core_nodes":["10.0.0.1:4370"]}'
        return int(answer.status)

    return asyncio.run(scenario())


def signed(secret: str = "s", endpoint: str = ENDPOINT, at: int | None = None) -> dict[str, str]:
    at = int(time.time()) if at is None else at
    return {TIME_HEADER: str(at), SIGNATURE_HEADER: sign(secret, endpoint, at)}


@pytest.mark.parametrize("remote", ["127.0.0.1", "::1"])
def test_this_machine_needs_no_signature(remote: str) -> None:
    assert post(remote=remote) == 200


def test_another_machine_must_sign_its_request() -> None:
    assert post(remote="10.0.0.7") == 401
    assert post(remote="10.0.0.7", headers=signed()) == 200


@pytest.mark.parametrize(
    "headers",
    [
        signed("other"),
        signed(endpoint="10.0.0.8:1883"),
        signed(at=NOW - HOUR),
        signed(at=NOW + HOUR),
        {TIME_HEADER: str(NOW)},
        {TIME_HEADER: "soon", SIGNATURE_HEADER: "x"},
        {TIME_HEADER: str(NOW), SIGNATURE_HEADER: "\xff"},
    ],
)
def test_a_wrong_or_old_signature_is_rejected(headers: dict[str, str]) -> None:
    assert post(remote="10.0.0.7", headers=headers) == 401


def test_without_a_secret_no_other_machine_can_register() -> None:
    assert post(remote="10.0.0.7", secret="", headers=signed("")) == 401


def test_a_web_page_cannot_register_a_node() -> None:
    assert post(headers={"Origin": "http://localhost:3000"}) == 403


@pytest.mark.parametrize("endpoint", ["core", ":1883", "10.0.0.1:0"])
def test_an_endpoint_has_a_host_and_a_port(endpoint: str) -> None:
    with pytest.raises(UsageError):
        post(endpoint)


def test_a_signature_has_this_form() -> None:
    # printf 'register\n10.0.0.7:1883\n1700000000' | openssl dgst -sha256 -hmac s
    expected = "235753ffe78f2fdc54ec1a097792d91adfaa326a86430f1c5bad2843e7c683cd"
    assert sign("s", ENDPOINT, 1_700_000_000) == expected
