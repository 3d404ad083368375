"""Reads of the log that fail for a while, such as for lack of file descriptors: readers wait, and get everything once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.base.errors import Unavailable
from braidmq.storage.engine.store import Store
from braidmq.storage.format.kept_messages import DELAYED_PREFIX, RETAINED_PREFIX
from braidmq.storage.format.rows import EPOCH_PREFIX
from braidmq.testing import Broker
from tests.support.clients.wire import Wire


class FailingReads:
    """Lets every read of records fail after some rows, as often as is wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self._items = Store.items
        monkeypatch.setattr(Store, "items", lambda *arguments: self.items(*arguments))

    def items(self, store: Store, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._items(store, family, lower, upper)
        if lower >= EPOCH_PREFIX or not self.left:
            return rows
        self.left -= 1
        return self._broken(rows)

    def _broken(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for _ in range(20):
            yield next(rows)
        raise Unavailable("the log cannot be read: Too many open files")


class FailingRows:
    """Lets reads of single rows fail, as often as is wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: bytes) -> None:
        self.left = 0
        self._get = Store.get
        self._prefix = prefix
        monkeypatch.setattr(Store, "get", lambda *arguments: self.get(*arguments))

    def get(self, store: Store, family: str, key: bytes) -> bytes | None:
        if self.left and key.startswith(self._prefix):
            self.left -= 1
            raise Unavailable("the log cannot be read: Too many open files")
        return self._get(store, family, key)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_reader_with_temporary_read_errors_gets_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    payloads = [b"%d" % number for number in range(100)]
    with Broker(node={"data_dir": str(tmp_path)}) as broker, Wire(broker.host, broker.port).connect() as publisher:
        for payload in payloads:
            assert publisher.publish("t", payload, 1) < 0x80
    reads = FailingReads(monkeypatch)
    with Broker(node={"data_dir": str(tmp_path)}) as broker, Wire(broker.host, broker.port).connect() as reader:
        reads.left = 2

        reader.subscribe("$replay/earliest/t", qos=qos)

        assert [reader.receive_publish().payload for _ in payloads] == payloads
        assert reads.left == 0


def test_a_shared_group_with_temporary_read_errors_gets_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = [b"%d" % number for number in range(100)]
    with Broker(node={"data_dir": str(tmp_path)}) as broker:
        member = Wire(broker.host, broker.port).connect("member", persistent=True)
        member.subscribe("$share/g/t", qos=1)
        member.close()
        with Wire(broker.host, broker.port).connect() as publisher:
            for payload in payloads:
                assert publisher.publish("t", payload, 1) < 0x80
    reads = FailingReads(monkeypatch)
    with Broker(node={"data_dir": str(tmp_path)}) as broker:
        reads.left = 2

        with Wire(broker.host, broker.port).connect("member", persistent=True, receive_maximum=1000) as member:
            assert sorted(member.receive_publish().payload for _ in payloads) == sorted(payloads)
        assert reads.left == 0


@pytest.mark.row("D10")
def test_a_delayed_message_unreadable_when_due_is_published_later(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = FailingRows(monkeypatch, DELAYED_PREFIX)
    with Broker() as broker, Wire(broker.host, broker.port).connect() as client:
        client.subscribe("t", qos=1)
        rows.left = 2

        assert client.publish("$delayed/1/t", b"late", 1) < 0x80

        assert client.receive_publish().payload == b"late"
        assert rows.left == 0


@pytest.mark.row("D10")
def test_a_temporarily_unreadable_retained_message_reaches_its_subscriber(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = FailingRows(monkeypatch, RETAINED_PREFIX)
    payloads = {f"r/{number}": bytes(100_000) + b"%d" % number for number in range(5)}
    with Broker() as broker, Wire(broker.host, broker.port).connect() as client:
        for topic, payload in payloads.items():
            assert client.publish(topic, payload, 1, retain=True) < 0x80
        rows.left = 3

        client.subscribe("r/#", qos=1)

        received = [client.receive_publish() for _ in payloads]
        assert {packet.topic: packet.payload for packet in received} == payloads
        client.expect_silence()
        assert rows.left == 0
