"""Certificates of the history service that change while it serves: it shows the new ones, and readers go on."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import ssl
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from cryptography.x509.oid import NameOID

from braidmq.base.config.settings import HistorySettings
from braidmq.base.config.sources import from_settings
from braidmq.base.errors import ConfigError, Unavailable
from braidmq.flight import connect, wire
from braidmq.flight.client import HistoryClient
from braidmq.history.node_side import supervisor
from braidmq.history.node_side.certificates import ServiceCertificates
from braidmq.history.node_side.supervisor import HistoryService
from braidmq.mqtt.packets import Publish
from braidmq.testing import Broker
from tests.durability.campaigns.node import write_config
from tests.history.node_side.service_process import await_that, history_port_of
from tests.support.certificates import Authority, Pair
from tests.support.clients.wire import Wire
from tests.support.started import Started

# More than all buffers between the service and a reader hold, so that a stream is under way until it is read.
MESSAGES = 6000
PAYLOAD = bytes(8192)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def served(authority: Authority) -> Pair:
    return authority.server(file_stem="served")


@pytest.fixture
def broker(served: Pair) -> Iterator[Broker]:
    with Broker(history={"bind": "127.0.0.1:0", "cert_file": served.cert_file, "key_file": served.key_file}) as broker:
        assert broker.history_port
        yield broker


def service_of(broker: Broker) -> HistoryService:
    assert broker.node is not None
    assert broker.node.history is not None
    return broker.node.history


def reload(broker: Broker, **changed: str) -> None:
    """What SIGHUP does, with these keys of `history` changed."""
    assert broker.node is not None
    settings = broker.node.settings
    history = msgspec.structs.replace(settings.history, **changed)
    broker.run(broker.node.reload(from_settings(msgspec.structs.replace(settings, history=history))))


def look_again(broker: Broker, **changed: str) -> None:
    """The service's part of it alone: whoever loads a configuration has looked at its files before, and refuses bad ones."""
    assert broker.node is not None
    broker.run(service_of(broker).reload(msgspec.structs.replace(broker.node.settings.history, **changed)))


def reader_of(broker: Broker, authority: Authority, **rest: str) -> HistoryClient:
    return connect(f"grpc+tls://localhost:{broker.history_port}", ca_file=authority.cert_file, **rest)  # type: ignore[arg-type]


def shown_by(port: int) -> list[str]:
    """The certificate that a new connection is shown."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=20).split()


def content(file: str) -> list[str]:
    return Path(file).read_text().split()


def publish_much(broker: Broker) -> None:
    with Wire(broker.host, broker.port).connect("p") as client:
        for _ in range(MESSAGES // 100):
            ids = [client.next_packet_id() for _ in range(100)]
            client.send(*(Publish("much", PAYLOAD, 1, packet_id=each) for each in ids))
            for each in ids:
                client.finish_publish(1, each)


@pytest.mark.row("K5")
def test_a_stream_continues_while_the_service_gets_new_certificates(
    broker: Broker, authority: Authority, served: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_much(broker)
    service, port, before = service_of(broker), broker.history_port, service_of(broker).process_id
    caplog.set_level(logging.INFO, "braidmq")
    attempts: list[str] = []
    with reader_of(broker, authority) as reader:
        attempt = reader._attempt

        def count(location: str, ticket: wire.Ticket) -> Generator[pa.RecordBatch]:
            attempts.append(location)
            return attempt(location, ticket)

        monkeypatch.setattr(reader, "_attempt", count)
        [(ticket, _)] = reader.plan(wire.Plan(["much"], partitions=1)).parts
        stream = reader.stream(msgspec.structs.replace(ticket, columns=["position", "payload"]))
        positions = next(stream)["position"].to_pylist()

        authority.server(file_stem="served")
        reload(broker)

        assert broker.history_port == port
        assert shown_by(port) == content(served.cert_file)
        for batch in stream:
            positions += batch["position"].to_pylist()
    assert len(positions) == len(set(positions)) == MESSAGES
    assert service.process_id not in (before, None)
    assert service.restarts == 0
    assert [line.getMessage() for line in caplog.records if line.name == "braidmq.listeners"] == [
        "history: certificates reloaded"
    ]
    assert [line.getMessage() for line in caplog.records if line.levelno > logging.INFO] == []
    assert len(attempts) > 1  # it did break off


@pytest.mark.row("K5")
def test_certificates_that_cannot_be_used_leave_the_service_as_it_is(
    broker: Broker, authority: Authority, served: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    service, before, first = service_of(broker), service_of(broker).process_id, content(served.cert_file)
    shutil.copy(authority.server(file_stem="another").key_file, served.key_file)

    look_again(broker)

    assert service.process_id == before
    assert shown_by(broker.history_port) == first
    [line] = [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]
    assert f"history.key_file: {served.key_file} is not the key of {served.cert_file}" in line
    assert "the certificates loaded before stay in use" in line

    shutil.copy(authority.directory / "another.crt", served.cert_file)
    look_again(broker)

    assert shown_by(broker.history_port) == content(served.cert_file) != first


@pytest.mark.row("K5")
def test_a_service_that_dies_while_bad_files_lie_there_comes_back_with_the_certificates_it_had(
    broker: Broker, authority: Authority, served: Pair
) -> None:
    service, before, first = service_of(broker), service_of(broker).process_id, content(served.cert_file)
    assert before is not None
    shutil.copy(authority.server(file_stem="another").key_file, served.key_file)

    os.kill(before, signal.SIGKILL)

    await_that("it is started again", lambda: service.process_id not in (before, None) and service.address is not None)
    assert shown_by(broker.history_port) == first


def test_a_reload_without_new_certificates_breaks_nothing_off(broker: Broker, served: Pair) -> None:
    before = service_of(broker).process_id
    Path(served.cert_file).touch()

    reload(broker)

    assert broker.history_port
    assert service_of(broker).process_id == before


def test_new_files_are_seen_without_a_reload(authority: Authority, served: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CERTIFICATE_POLL_S", 0.05)
    with Broker(history={"bind": "127.0.0.1:0", "cert_file": served.cert_file, "key_file": served.key_file}) as broker:
        port, before = broker.history_port, service_of(broker).process_id

        authority.server(file_stem="served")

        await_that("another process", lambda: service_of(broker).process_id not in (before, None))
        assert broker.history_port == port
        assert shown_by(port) == content(served.cert_file)
        assert service_of(broker).restarts == 0


def test_adding_or_removing_an_authority_takes_effect_for_readers(broker: Broker, authority: Authority) -> None:
    known = authority.client((NameOID.COMMON_NAME, "reader"))
    with reader_of(broker, authority) as reader:
        assert reader.shards().shards

    reload(broker, ca_file=authority.cert_file)

    with reader_of(broker, authority, cert_file=known.cert_file, key_file=known.key_file) as reader:
        assert reader.shards().shards
    stranger = connect(f"grpc+tls://localhost:{broker.history_port}", ca_file=authority.cert_file, retry_s=0.1)
    with stranger, pytest.raises(Unavailable):
        stranger.shards()

    reload(broker, ca_file="")

    with reader_of(broker, authority) as reader:
        assert reader.shards().shards


def test_tls_begins_and_ends_by_a_reload_and_not_with_files_that_cannot_be_used(
    authority: Authority, served: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(history={"bind": "127.0.0.1:0"}) as broker:
        plain = f"127.0.0.1:{broker.history_port}"

        look_again(broker, cert_file=served.cert_file, key_file=authority.server(file_stem="another").key_file)

        assert "is not the key of" in caplog.text
        assert "the history service continues without TLS" in caplog.text
        with connect(plain) as reader:
            assert reader.shards().shards

        reload(broker, cert_file=served.cert_file, key_file=served.key_file)

        with reader_of(broker, authority) as reader:
            assert reader.shards().shards
        assert service_of(broker).certificate_expiry is not None

        reload(broker, cert_file="", key_file="")

        assert f"127.0.0.1:{broker.history_port}" == plain
        with connect(plain) as reader:
            assert reader.shards().shards


@pytest.mark.row("K5")
def test_a_hangup_brings_new_certificates_and_refuses_bad_ones_in_one_line(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    file = write_config(tmp_path, history={"cert_file": served.cert_file, "key_file": served.key_file})
    with Started(file, {"BRAIDMQ_HISTORY__BIND": "127.0.0.1:0"}) as node:
        port = history_port_of(node)
        authority.server(file_stem="served")
        good = content(served.cert_file)

        node.send(signal.SIGHUP)

        node.await_line("history: certificates reloaded")
        assert history_port_of(node) == port
        assert shown_by(port) == good
        assert [line for line in node.log if " error " in line or "Traceback" in line] == []

        Path(served.cert_file).write_text("half a certif")
        node.send(signal.SIGHUP)

        node.await_line("the configuration was not reloaded: history.cert_file: ")
        assert shown_by(port) == good


def test_a_service_does_not_begin_with_files_that_cannot_be_used(tmp_path: Path, authority: Authority, served: Pair) -> None:
    nobody = tmp_path / "nobody.pem"
    nobody.write_text(Path(served.cert_file).read_text())
    history = HistorySettings(cert_file=served.cert_file, key_file=served.key_file, ca_file=str(nobody))

    with pytest.raises(ConfigError, match=r"history\.ca_file: .* holds no CA certificate"):
        ServiceCertificates(history)


def test_a_process_that_cannot_be_started_for_new_certificates_is_waited_for(
    broker: Broker, authority: Authority, served: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    python = sys.executable
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    authority.server(file_stem="served")
    look_again(broker)
    await_that("two attempts", lambda: service_of(broker).restarts == 2)

    monkeypatch.setattr(sys, "executable", python)

    assert shown_by(broker.history_port) == content(served.cert_file)
    attempts = [line.getMessage() for line in caplog.records if "it cannot be started" in line.getMessage()]
    assert len(attempts) <= 3, "a pause after each"
