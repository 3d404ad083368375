"""Web pages that reach the node under their own host name (DNS rebinding)."""

from __future__ import annotations

import http.client
from collections.abc import Callable

import pytest

from tests.support.stage import Stage

Start = Callable[..., Stage]


def ask(stage: Stage, path: str, host: str) -> tuple[int, bytes]:
    """Status and body of an answer of the node's API."""
    node = stage.broker.node
    assert node is not None
    assert node.api_address is not None
    connection = http.client.HTTPConnection(node.api_address.host, node.api_address.port, timeout=5)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.row(61)
@pytest.mark.parametrize("bind", ["127.0.0.1:0", pytest.param("[::1]:0", marks=pytest.mark.needs("ipv6"))])
def test_dns_rebinding_reads_nothing_from_the_api(start: Start, bind: str) -> None:
    stage = start(api={"bind": bind})

    for path in ("/status", "/metrics", "/ready", "/ctl/status"):
        status, body = ask(stage, path, "rebound.example:18083")
        assert status == 403
        assert b"uptime" not in body
        assert b"ready" not in body
    assert ask(stage, "/status", bind.replace(":0", ":18083"))[0] == 200
    assert ask(stage, "/status", "localhost:8080")[0] == 200
