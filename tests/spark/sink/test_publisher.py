"""The rows of one partition, published to a real broker over connections that break."""

from __future__ import annotations

import random
import re
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from braidmq.base.errors import Unavailable, UsageError
from braidmq.mqtt.reasons import Reason
from braidmq.spark.sink.producer_client import TakenOver
from braidmq.spark.sink.rows import RowBatch, RowMaker
from braidmq.testing import Broker
from tests.spark.sink.attempts import MAKER, Attempt, Refused, table
from tests.support.certificates import Authority
from tests.support.cutting_proxy import CuttingProxy


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with tempfile.NamedTemporaryFile("w", suffix=".acl") as file:
        file.write("topic readwrite t/#\ntopic readwrite deep/#\n")
        file.flush()
        Path(file.name).chmod(0o600)
        tables: dict[str, Any] = {
            "access": {"acl_file": file.name},
            "mqtt": {"topic_levels_max": 4, "packet_bytes_max": "64KiB"},
            "history": {"topics": ["t/#", "deep/#"]},
        }
        with Broker(**tables) as broker:
            yield broker


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A producer for this test alone."""
    return f"{request.node.name[:80]}-{random.randrange(1 << 40)}"


def rows(first: int, end: int, name: str, topic: str = "t/x") -> RowBatch:
    payloads = [f"{name} {number}" for number in range(first, end)]
    return MAKER.take(pa.record_batch({"topic": [topic] * len(payloads), "payload": payloads}))


def recorded(broker: Broker, name: str, topic_filter: str = "t/#") -> list[int]:
    """The numbers of a test's messages in the log, in order of time."""

    async def read() -> list[int]:
        assert broker.node is not None
        replay = broker.node.log.replay([topic_filter], 0)
        found = []
        while not replay.is_caught_up:
            found += [record.payload.decode() for _, record in replay.next(10_000)]
        return [int(text.rpartition(" ")[2]) for text in found if text.startswith(f"{name} ")]

    return broker.run(read())


def test_rows_are_recorded_once_and_in_order(broker: Broker, name: str) -> None:
    attempt = Attempt(broker.port, name)

    attempt.run(*(rows(first, first + 700, name) for first in range(0, 7000, 700)))

    assert recorded(broker, name) == list(range(7000))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_qos_and_more_rows_than_there_are_packet_ids(broker: Broker, name: str, qos: int) -> None:
    maker = RowMaker({"topic": 0, "payload": 1}, qos)
    count = 70_000 if qos == 1 else 3000
    payloads = [f"{name} {number}" for number in range(count)]
    attempt = Attempt(broker.port, name)

    attempt.run(table(maker, topic=["t/x"] * count, payload=payloads))

    assert attempt.publisher.progress.settled == count
    assert recorded(broker, name) == (list(range(count)) if qos else [])


@pytest.mark.parametrize("qos", [1, 2])
def test_a_network_that_breaks_again_and_again_costs_nothing_and_repeats_nothing(broker: Broker, name: str, qos: int) -> None:
    chance = random.Random(qos)
    maker = RowMaker({"topic": 0, "payload": 1}, qos)
    budgets = (chance.randrange(100, 60_000) for _ in range(25))
    with CuttingProxy(broker.port, budgets) as proxy:
        attempt = Attempt(proxy.port, name)
        for first in range(0, 10_000, 500):
            payloads = [f"{name} {number}" for number in range(first, first + 500)]
            attempt.publisher.add(table(maker, topic=["t/x"] * 500, payload=payloads))
        attempt.publisher.finish()

        assert recorded(broker, name) == list(range(10_000))
        assert proxy.connections > 5


def test_a_second_attempt_resumes_where_the_first_one_stopped(broker: Broker, name: str) -> None:
    first = Attempt(broker.port, name, batch=3)
    first.publisher.add(rows(0, 1500, name))
    first.publisher.close()

    second = Attempt(broker.port, name, batch=3)
    second.run(rows(0, 1000, name), rows(1000, 2500, name))

    assert 0 < second.publisher.resumed_at <= 1500
    assert recorded(broker, name) == list(range(2500))


def test_a_finished_batch_is_not_published_again(broker: Broker, name: str) -> None:
    for _ in range(2):
        Attempt(broker.port, name, batch=3).run(rows(0, 10, name))

    assert recorded(broker, name) == list(range(10))


@pytest.mark.parametrize("partition", [0, 7])
@pytest.mark.parametrize("keys", [False, True])
def test_an_earlier_batch_than_the_broker_has_is_rejected_with_a_clear_message_or_skipped(
    broker: Broker, name: str, partition: int, keys: bool
) -> None:
    Attempt(broker.port, name, 4, keys=keys).run()

    with pytest.raises(UsageError, match=rf"the broker has batch 4 of {re.escape(name)}, and this is batch 3: .*onEarlierBatch"):
        Attempt(broker.port, name, 3, partition, keys=keys)
    skipping = Attempt(broker.port, name, 3, partition, keys=keys, onearlierbatch="skip")

    assert skipping.publisher.is_done
    skipping.publisher.close()


def test_an_overtaken_batch_fails_with_a_clear_message_and_is_not_skipped(broker: Broker, name: str) -> None:
    with CuttingProxy(broker.port, iter([20_000])) as proxy:
        attempt = Attempt(proxy.port, name, 3, onearlierbatch="skip")
        Attempt(broker.port, name, 4, 1).run()

        with pytest.raises(UsageError, match="a later batch"):
            attempt.run(*(rows(first, first + 500, name) for first in range(0, 5000, 500)))


@pytest.mark.parametrize("other", [rows(5, 15, "other"), rows(0, 4, "other")])
def test_other_rows_than_an_earlier_attempt_had_are_rejected_with_a_clear_message(
    broker: Broker, name: str, other: RowBatch
) -> None:
    Attempt(broker.port, name, batch=3).run(rows(0, 10, name))

    with pytest.raises(UsageError, match="keyColumn"):
        Attempt(broker.port, name, batch=3).run(other)

    assert recorded(broker, name) == list(range(10))


def test_the_newer_of_two_attempts_wins_and_the_older_does_not_fight_back(broker: Broker, name: str) -> None:
    old = Attempt(broker.port, name)
    old.publisher.add(rows(0, 1000, name))

    new = Attempt(broker.port, name)
    new.publisher.add(rows(0, 2000, name))
    with pytest.raises(TakenOver):
        old.run(rows(1000, 3000, name))
    new.run(rows(2000, 3000, name))

    assert recorded(broker, name) == list(range(3000))


def test_two_attempts_over_a_bad_network_publish_each_row_once_between_them(broker: Broker, name: str) -> None:
    chance = random.Random(5)
    outcomes: list[str] = []

    def attempt(port: int) -> None:
        try:
            one = Attempt(port, name)
            one.run(*(rows(first, first + 100, name) for first in range(0, 3000, 100)))
            outcomes.append("done")
        except TakenOver:
            outcomes.append("taken over")

    with CuttingProxy(broker.port, (chance.randrange(100, 40_000) for _ in range(20))) as proxy:
        threads = [threading.Thread(target=attempt, args=(proxy.port,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if "done" not in outcomes:
        attempt(broker.port)

    assert recorded(broker, name) == list(range(3000))


# Refusals


def test_rows_that_are_refused_or_cannot_be_sent_are_reported_and_the_rest_is_recorded(broker: Broker, name: str) -> None:
    topics = ["t/x"] * 2000
    topics[3] = "forbidden"
    topics[4] = "forbidden"
    topics[500] = "bad/#"
    topics[501] = "deep/1/2/3/4/5"
    topics[1999] = "forbidden"
    payloads = [f"{name} {number}" for number in range(2000)]
    payloads[700] = "x" * 70_000
    attempt = Attempt(broker.port, name)

    attempt.run(table(topic=topics, payload=payloads))

    assert attempt.refused == [
        (4, Reason.NOT_AUTHORIZED),
        (5, Reason.NOT_AUTHORIZED),
        (501, Reason.TOPIC_NAME_INVALID),
        (502, Reason.TOPIC_NAME_INVALID),
        (701, Reason.PACKET_TOO_LARGE),
        (2000, Reason.NOT_AUTHORIZED),
    ]
    assert recorded(broker, name) == [number for number in range(2000) if number not in (3, 4, 500, 501, 700, 1999)]


def test_a_row_that_fails_the_task_is_met_again_by_the_next_attempt_and_nothing_behind_it_was_recorded(
    broker: Broker, name: str
) -> None:
    for _ in range(2):
        attempt = Attempt(broker.port, name)
        attempt.is_failing = True
        topics = ["t/x"] * 10 + ["forbidden"] + ["t/x"] * 10
        with pytest.raises(Refused, match="11"):
            attempt.run(table(topic=topics, payload=[f"{name} {number}" for number in range(21)]))

    assert recorded(broker, name) == list(range(10))


def test_rows_that_history_does_not_cover_are_taken_too_and_do_not_make_refusals_endless(broker: Broker, name: str) -> None:
    with Broker(history={"topics": ["kept"]}, mqtt={"topic_levels_max": 4}) as other:
        topics = ["loose", "loose", "a/b/c/d/e/f", "loose", "kept", "a/b/c/d/e/f", "loose", "kept"]
        attempt = Attempt(other.port, name)

        attempt.run(table(topic=topics, payload=[f"{name} {number}" for number in range(8)]))

        assert attempt.refused == [(3, Reason.TOPIC_NAME_INVALID), (6, Reason.TOPIC_NAME_INVALID)]
        assert recorded(other, name, "#") == [4, 7]


def test_a_refused_row_without_qos_fails_with_a_clear_message(broker: Broker, name: str) -> None:
    maker = RowMaker({"topic": 0, "payload": 1}, 0)

    with pytest.raises(UsageError, match="QoS 0"):
        Attempt(broker.port, name).run(table(maker, topic=["forbidden"], payload=["x"]))


# Keys


def test_with_keys_rows_are_published_once_by_any_number_of_partitions(broker: Broker, name: str) -> None:
    maker = RowMaker({"topic": 0, "payload": 1, "key": 2}, 1)

    def part(numbers: list[int]) -> RowBatch:
        return table(maker, topic=["t/x"] * len(numbers), payload=[f"{name} {n}" for n in numbers], key=[str(n) for n in numbers])

    first = Attempt(broker.port, name, 1, 0, keys=True)
    first.publisher.add(part(list(range(0, 1500))))
    first.publisher.close()
    chance = random.Random(3)
    mixed = chance.sample(range(3000), 3000)
    with CuttingProxy(broker.port, (chance.randrange(1000, 60_000) for _ in range(10))) as proxy:
        for partition in range(3):
            Attempt(proxy.port, name, 1, partition, keys=True).run(part(mixed[partition::3]))

    assert sorted(recorded(broker, name)) == list(range(3000))


def test_with_keys_rejected_rows_are_reported_and_the_others_are_sent_on_the_same_connection(broker: Broker, name: str) -> None:
    maker = RowMaker({"topic": 0, "payload": 1, "key": 2}, 1)
    topics = ["t/x", "forbidden", "bad/#", "t/x", "forbidden", "t/x"]
    attempt = Attempt(broker.port, name, keys=True)

    attempt.run(table(maker, topic=topics, payload=[f"{name} {n}" for n in range(6)], key=list("abcdef")))

    assert sorted(row for row, _ in attempt.refused) == [2, 3, 5]
    assert recorded(broker, name) == [0, 3, 5]


# The world


def test_a_broker_that_is_not_there_is_waited_for_and_then_given_up(name: str) -> None:
    with pytest.raises(Unavailable, match=r"could not be published for 0\.3 s"):
        Attempt(1, name, retrytimeout="300ms")


def test_wrong_credentials_fail_at_once(name: str) -> None:
    listeners = {"tcp": {"default": {"bind": "127.0.0.1:0", "allow_anonymous": False}}}
    with Broker(listeners=listeners) as closed, pytest.raises(UsageError, match="user and password"):
        Attempt(closed.port, name, user="nobody", password="x")


def test_rows_are_sent_over_tls_and_an_unknown_authority_is_reported(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path)
    server = authority.server("localhost")
    listeners = {
        "tcp": {"default": {"bind": "127.0.0.1:0"}},
        "tls": {"default": {"bind": "127.0.0.1:0", "cert_file": server.cert_file, "key_file": server.key_file}},
    }
    with Broker(listeners=listeners) as secured:
        port = secured.ports["tls:default"]
        options: dict[str, Any] = {"servers": f"mqtts://localhost:{port}", "tls.cafile": authority.cert_file}

        Attempt(port, name, **options).run(rows(0, 5000, name))

        assert recorded(secured, name) == list(range(5000))
        with pytest.raises(UsageError, match=r"tls\.caFile"):
            Attempt(port, name, servers=f"mqtts://localhost:{port}")
