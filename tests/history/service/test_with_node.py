"""The history service of a real node: what it shows, which users may see it, and that it recovers from every failure."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from braidmq.access import hashes
from braidmq.base.errors import Unavailable, UsageError
from braidmq.control.history import TokenRequest
from braidmq.flight import connect, wire
from braidmq.flight.client import HistoryClient
from braidmq.operations import NodeOperations
from braidmq.testing import Broker
from tests.durability.campaigns.node import kill, write_config
from tests.history.node_side.service_process import await_that, child_of, history_port_of, is_alive, start
from tests.support.certificates import Authority
from tests.support.clients.wire import Wire
from tests.support.ports import closed_address

SERVED = {"bind": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(history=SERVED) as broker:
        yield broker


def client_of(broker: Broker, **rest: Any) -> HistoryClient:
    return connect(f"127.0.0.1:{broker.history_port}", **rest)


def publish(broker: Broker, topic: str, *payloads: bytes, client_id: str = "p", **properties: Any) -> None:
    with Wire(broker.host, broker.port).connect(client_id) as client:
        for payload in payloads:
            assert client.publish(topic, payload, 1, **properties) in (0, 0x10)


def read(client: HistoryClient, *filters: str) -> list[tuple[str, bytes]]:
    table = client.read(list(filters)).read_all().sort_by("position")
    return list(zip(table["topic"].to_pylist(), table["payload"].to_pylist(), strict=True))


def test_a_message_is_in_the_history_once_it_is_acknowledged(broker: Broker) -> None:
    with client_of(broker) as client:
        for number in range(20):
            publish(broker, "seen/at/once", b"%d" % number)

            assert read(client, "seen/at/once")[-1] == ("seen/at/once", b"%d" % number)


def test_all_columns_have_the_published_values(broker: Broker) -> None:
    publish(
        broker,
        "all/columns",
        b"\x00\xff",
        client_id="sensor 7",
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers/7",
        correlation_data=b"\x01\x02",
        user_properties=[("unit", "K"), ("unit", "C")],
        message_expiry_interval=60,
    )
    with client_of(broker) as client:
        [row] = client.read("all/columns").read_all().to_pylist()

    assert row["client_id"] == "sensor 7"
    assert (row["qos"], row["retain"], row["payload"]) == (1, False, b"\x00\xff")
    assert (row["payload_format"], row["content_type"], row["response_topic"]) == (1, "text/plain", "answers/7")
    assert row["correlation_data"] == b"\x01\x02"
    assert row["user_properties"] == [{"name": "unit", "value": "K"}, {"name": "unit", "value": "C"}]
    assert round((row["expires_at"] - row["store_timestamp"]).total_seconds()) == 60
    assert row["position"] == row["store_timestamp"].timestamp() * 1_000_000


def test_history_has_the_same_rows_as_a_replay_by_mqtt(broker: Broker) -> None:
    for number in range(60):
        publish(broker, f"same/{number % 7}/rows", b"%d" % number, client_id=f"p{number % 5}")
    with Wire(broker.host, broker.port).connect("replays") as client:
        client.subscribe("$replay/earliest/same/+/rows")
        replayed = sorted((packet.topic, packet.payload) for packet in client.receive_publishes(60))

    with client_of(broker) as reader:
        assert sorted(read(reader, "same/+/rows")) == replayed


def test_a_named_reader_is_seen_at_the_broker(broker: Broker) -> None:
    publish(broker, "named", b"1")
    with client_of(broker) as client:
        shards = client.shards()
        client.note_reader("nightly", {int(shard): state.latest for shard, state in shards.shards.items() if state.latest})
    assert broker.node is not None

    assert "nightly" in broker.node.log.readers.names


@pytest.mark.row("K14")
def test_named_readers_are_behind_by_what_they_read() -> None:
    with Broker(history=SERVED) as broker:
        publish(broker, "plant/1/temp", *(b"%d" % number for number in range(30)))
        publish(broker, "other", *(b"%d" % number for number in range(200)))
        assert broker.node is not None
        operations = NodeOperations(broker.node).history
        with client_of(broker) as client:
            shards = client.shards().shards
            for name, filters in (("plant", ["plant/#"]), ("none", ["nothing/here"]), ("all", ["#"])):
                client.note_reader(name, dict.fromkeys(map(int, shards), 1), filters)

            found = {each.name: each for each in broker.run(operations.stats()).readers}

        assert {name: (each.records_behind, each.is_estimate) for name, each in found.items()} == {
            "plant": (30, False),
            "none": (0, False),
            "all": (230, True),
        }
        assert found["plant"].filters == ["plant/#"]
        assert (found["none"].lag_s, found["plant"].lag_s > 0) == (0.0, True)

        assert {name for name, each in found.items() if each.is_upper_bound} == set()

        # Without the service, all records after the position count, and the answer says that they are an upper bound.
        assert broker.node.history is not None
        broker.run(broker.node.history.stop())
        found = {each.name: each for each in broker.run(operations.stats()).readers}
        assert {name: (each.records_behind, each.is_upper_bound) for name, each in found.items()} == {
            "plant": (230, True),
            "none": (230, True),
            "all": (230, False),
        }


@pytest.mark.row("K6")
def test_rules_and_passwords_are_those_of_the_broker(tmp_path: Path) -> None:
    passwords, rules = tmp_path / "passwords", tmp_path / "rules"
    passwords.write_text(f"ann:{hashes.make(b'secret')}\nbob:{hashes.make(b'other')}\n")
    passwords.chmod(0o600)
    rules.write_text("user ann\ntopic readwrite #\nuser bob\ntopic read plant/#\n")
    access = {"password_file": str(passwords), "acl_file": str(rules)}
    with Broker(history={**SERVED, "anonymous": "none"}, access=access) as broker:
        with Wire(broker.host, broker.port).connect("p", user_name="ann", password=b"secret") as client:
            client.publish("plant/1", b"yes", 1)
            client.publish("office/1", b"no", 1)
        with client_of(broker, user="bob", password="other") as reader:
            assert read(reader, "plant/#") == [("plant/1", b"yes")]
            with pytest.raises(UsageError, match="office"):
                read(reader, "office/#")
        with client_of(broker, user="bob", password="wrong") as reader, pytest.raises(UsageError):
            read(reader, "plant/#")
        with client_of(broker) as reader, pytest.raises(UsageError):
            read(reader, "plant/#")


def test_the_service_speaks_tls_and_requires_client_certificates_if_configured(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, reader = authority.server(), authority.client((NameOID.COMMON_NAME, "reader"))
    served = {**SERVED, "cert_file": server.cert_file, "key_file": server.key_file, "ca_file": authority.cert_file}
    with Broker(history=served) as broker:
        publish(broker, "over/tls", b"1")
        address, ca_file = f"grpc+tls://localhost:{broker.history_port}", authority.cert_file
        with connect(address, ca_file=ca_file, cert_file=reader.cert_file, key_file=reader.key_file) as client:
            assert read(client, "over/tls") == [("over/tls", b"1")]
        with connect(address, ca_file=ca_file, retry_s=0.1) as client, pytest.raises(Unavailable):
            client.shards()


@pytest.mark.row("K4")
def test_a_service_that_dies_is_restarted_and_readers_continue() -> None:
    with Broker(history=SERVED) as broker:
        publish(broker, "before", b"1")
        assert broker.history_port
        assert broker.node is not None
        service = broker.node.history
        assert service is not None
        assert service.process_id is not None

        os.kill(service.process_id, signal.SIGKILL)

        await_that("the end is noticed", lambda: service.restarts == 1 and service.address is not None)
        publish(broker, "before", b"2")
        with client_of(broker) as client:
            assert read(client, "before") == [("before", b"1"), ("before", b"2")]


def test_the_service_ends_with_its_node_even_if_that_is_killed(tmp_path: Path) -> None:
    with start(write_config(tmp_path), "127.0.0.1:0") as node:
        history_port_of(node)
        child = child_of(node.pid)

        kill(node)

        await_that("the child is gone", lambda: not is_alive(child))


def test_a_service_that_hangs_ends_with_its_node_too(tmp_path: Path) -> None:
    with start(write_config(tmp_path), "127.0.0.1:0") as node:
        history_port_of(node)
        child = child_of(node.pid)
        watched = os.pidfd_open(child)
        os.kill(child, signal.SIGSTOP)

        os.kill(node.pid, signal.SIGKILL)

        try:
            assert select.select([watched], [], [], 20)[0], "the stopped process is still there"
        finally:
            if is_alive(child):
                os.kill(child, signal.SIGKILL)
            os.close(watched)


def test_ctrl_c_ends_both_without_complaints(tmp_path: Path) -> None:
    with start(write_config(tmp_path), "127.0.0.1:0") as node:
        history_port_of(node)
        child = child_of(node.pid)
        os.kill(child, signal.SIGINT)

        node.send(signal.SIGINT)

        assert node.await_end() == 0
        assert not is_alive(child)
        assert [line for line in node.log if "error" in line or "Traceback" in line] == []


@pytest.mark.row("K4")
def test_a_port_that_is_taken_does_not_stop_the_broker_and_is_taken_when_it_is_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = start(write_config(tmp_path), f"127.0.0.1:{port}")
        node.await_line("the history service is down: .* in use")
    with node:
        assert history_port_of(node) == port


def test_it_follows_a_broker_that_was_started_again(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    with start(file, "127.0.0.1:0") as node:
        port = node.await_port()
        with Wire("127.0.0.1", port).connect("p") as client:
            client.publish("kept", b"1", 1)
        with connect(f"127.0.0.1:{history_port_of(node)}") as reader:
            log = reader.shards().log
        kill(node)
    with start(file, "127.0.0.1:0") as node, connect(f"127.0.0.1:{history_port_of(node)}") as reader:
        assert reader.shards().log == log
        assert read(reader, "kept") == [("kept", b"1")]


def test_an_address_that_nothing_listens_on_gives_a_clear_message() -> None:
    with connect(closed_address(), retry_s=0.1) as reader, pytest.raises(Unavailable, match="is available"):
        reader.shards()


def test_positions_of_another_log_are_refused(broker: Broker) -> None:
    publish(broker, "a", b"1")
    with client_of(broker) as client, pytest.raises(UsageError, match="another log"):
        list(client.stream(wire.Ticket("00" * 16, ["#"], 0, 0, 1)))


def test_a_token_from_the_operator_reads_as_its_user(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"ann:{hashes.make(b'secret')}\n")
    passwords.chmod(0o600)
    with Broker(history={**SERVED, "anonymous": "none"}, access={"password_file": str(passwords)}) as broker:
        assert broker.node is not None
        operations = NodeOperations(broker.node).history
        made = broker.run(operations.token(TokenRequest("ann", 60.0)))
        with client_of(broker, token=made.token) as reader:
            assert reader.shards().shards
        with pytest.raises(UsageError, match="no user 'bob'"):
            broker.run(operations.token(TokenRequest("bob", 60.0)))
        with pytest.raises(UsageError, match="366 days"):
            broker.run(operations.token(TokenRequest("ann", 1e10)))
