"""How a client reaches a server: every kind of endpoint to a real broker, and the words for each way to fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.client.connection import connect
from braidmq.client.errors import EXIT_TLS, ClientError
from braidmq.client.transport import Endpoint, client_context
from braidmq.mqtt.packets import MQTT5, Connect, Publish, SubscribeOption
from braidmq.testing import Broker
from tests.support.certificates import Authority
from tests.support.ports import closed_address
from tests.support.scripted_server import ScriptedServer


def send_to_self(endpoint: Endpoint, payload: bytes) -> bytes:
    """What comes back of a message that a client publishes to itself."""

    async def run() -> bytes:
        came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        login = Connect("c", MQTT5)
        client = await connect(endpoint, login, on_message=lambda message: came.set_result(message.payload))
        assert await client.subscribe([SubscribeOption("t", 1)]) == [1]
        assert await (await client.publish(Publish("t", payload, 1))) == 0
        await came
        await client.disconnect()
        return came.result()

    async def bounded() -> bytes:
        async with asyncio.timeout(20):
            return await run()

    return asyncio.run(bounded())


def failure(endpoint: Endpoint) -> ClientError:
    with pytest.raises(ClientError) as failed:
        send_to_self(endpoint, b"")
    return failed.value


# More than one read of a socket, and more than a WebSocket frame with a short length.
PAYLOAD = bytes(range(256)) * 1000


def test_a_message_travels_over_tcp_tls_and_websocket(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    secure = {"default": {"bind": "127.0.0.1:0", "cert_file": server.cert_file, "key_file": server.key_file}}
    context = client_context(ca_file=authority.cert_file)
    plain = {"default": {"bind": "127.0.0.1:0"}}
    with Broker(listeners={"tcp": plain, "ws": plain, "tls": secure, "wss": secure}) as broker:
        ports = broker.ports
        for endpoint in (
            Endpoint(host="127.0.0.1", port=broker.port),
            Endpoint(host="127.0.0.1", port=broker.port, bind_address="127.0.0.1"),
            Endpoint(host="localhost", port=ports["tls:default"], tls=context),
            Endpoint(host="127.0.0.1", port=ports["ws:default"], websocket_path="/mqtt"),
            Endpoint(host="localhost", port=ports["wss:default"], websocket_path="/mqtt", tls=context),
        ):
            assert send_to_self(endpoint, PAYLOAD) == PAYLOAD, str(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        (Endpoint(host="::1"), "[::1]:1883"),
        (Endpoint(unix_path="/run/broker"), "/run/broker"),
        (Endpoint(host="h", port=8083, websocket_path="/mqtt"), "ws://h:8083/mqtt"),
    ],
    ids=["IPv6", "Unix socket", "WebSocket"],
)
def test_an_endpoint_is_written_as_a_person_would(endpoint: Endpoint, text: str) -> None:
    assert str(endpoint) == text


def test_a_port_that_nothing_listens_on_refuses_the_connection() -> None:
    host, _, port = closed_address().rpartition(":")

    refused = failure(Endpoint(host=host, port=int(port)))

    assert str(refused) == f"cannot connect to {host}:{port}: connection refused"


def test_a_websocket_path_that_does_not_exist_says_what_the_server_answered() -> None:
    with Broker() as broker:
        refused = failure(Endpoint(host="127.0.0.1", port=broker.ports["ws:default"], websocket_path="/elsewhere"))

    assert "no WebSocket at this path (it answered with status 404)" in str(refused)


def test_a_server_that_closes_within_the_websocket_handshake_is_reported() -> None:
    with ScriptedServer(lambda connection: connection.recv(4096)) as port:
        refused = failure(Endpoint(host="127.0.0.1", port=port, websocket_path="/mqtt"))

    assert str(refused).startswith(f"cannot connect to ws://127.0.0.1:{port}/mqtt: ")


def test_a_server_that_closes_within_the_tls_handshake_is_a_failure_of_tls(tmp_path: Path) -> None:
    context = client_context(ca_file=Authority(tmp_path).cert_file)
    with ScriptedServer(lambda connection: connection.recv(4096)) as port:
        refused = failure(Endpoint(host="127.0.0.1", port=port, tls=context))

    assert refused.exit_code == EXIT_TLS
    assert "TLS" in str(refused)


def test_a_file_that_cannot_be_used_for_tls_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")

    for file, words in (("missing.pem", "No such file or directory"), ("ca.pem", "cannot be used for TLS")):
        with pytest.raises(ClientError) as refused:
            client_context(ca_file=str(tmp_path / file))
        assert str(refused.value) == f"{tmp_path / file}: {words}"
        assert refused.value.exit_code == EXIT_TLS
