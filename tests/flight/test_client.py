"""The client against a service in memory: answers, lost connections, other servers, errors in words."""

from __future__ import annotations

import pickle
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from braidmq import flight
from braidmq.base.errors import BraidError, Unavailable, UsageError
from braidmq.flight import columns, wire
from braidmq.flight.access import Access
from braidmq.flight.client import HistoryClient
from braidmq.flight.errors import DataLoss
from tests.support.certificates import Authority
from tests.support.fakes.history_service import BEGINNING, FakeHistoryService
from tests.support.ports import closed_address

SECOND = 1_000_000


def positions(table: pa.Table) -> list[int]:
    return sorted(table.column("position").to_pylist())


def test_records_are_read_with_all_columns(history: FakeHistoryService) -> None:
    history.add("plant/1/temp", b"20", user_properties=[{"name": "unit", "value": "C"}], content_type="text/plain")
    history.add("plant/1/hum", b"60")

    with flight.connect(history.address) as client:
        table = client.read("plant/+/temp").read_all()

    assert table.schema == columns.SCHEMA
    assert table.to_pylist() == history.rows("plant/+/temp")


def test_columns_come_as_chosen_and_in_that_order(history: FakeHistoryService) -> None:
    row = history.add("a", b"1")

    with flight.connect(history.address) as client:
        table = client.read("a", columns=["payload", "topic"]).read_all()

    assert table.to_pylist() == [{"payload": b"1", "topic": "a"}]
    assert row["position"] == BEGINNING + SECOND


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("earliest", "latest", [1, 2, 3, 4]),
        ("-2s", "latest", [2, 3, 4]),
        ("1700000002000", "2023-11-14T22:13:23Z", [2]),
        (datetime(2023, 11, 14, 22, 13, 22, 1, tzinfo=UTC), datetime(2023, 11, 14, 22, 13, 24, tzinfo=UTC), [3]),
        ("latest", "latest", []),
    ],
)
def test_a_range_has_its_first_moment_and_not_its_last(
    history: FakeHistoryService, since: str | datetime, until: str | datetime, expected: list[int]
) -> None:
    # The service's clock stands at the last record: 4 s after the beginning.
    history.add_many("a", 4)

    with flight.connect(history.address) as client:
        table = client.read("a", since=since, until=until).read_all()

    assert positions(table) == [BEGINNING + each * SECOND for each in expected]


def test_a_time_without_a_zone_is_rejected_with_a_clear_message(history: FakeHistoryService) -> None:
    with flight.connect(history.address) as client, pytest.raises(UsageError, match="has no time zone"):
        client.read("a", since=datetime(2023, 11, 14))


@pytest.mark.parametrize("broken_after", [[0], [3], [4, 7], [0, 3, 6, 9]])
def test_a_broken_stream_resumes_without_gap_or_repeat(history: FakeHistoryService, broken_after: list[int]) -> None:
    # Each attempt has the topics in another order, so that counting rows would not do.
    for number in range(12):
        history.add(f"topic/{number % 4}", str(number).encode(), shard=0)
    history.broken_after = list(broken_after)

    with flight.connect(history.address) as client:
        table = client.read("#", columns=["payload"]).read_all()

    assert sorted(table.column("payload").to_pylist(), key=int) == [str(number).encode() for number in range(12)]
    assert len(history.tickets) == 1 + len(broken_after)


def test_a_stream_resumes_on_another_server(history: FakeHistoryService) -> None:
    with FakeHistoryService() as other:
        for service in (history, other):
            service.add_many("a", 9, shard=0)
        history.broken_after = [6] * 100

        with flight.connect([history.address, other.address]) as client:
            table = client.read("a").read_all()

    assert positions(table) == [row["position"] for row in other.rows()]
    assert len(other.tickets) == 1


def test_order_of_a_topic_survives_a_broken_stream(history: FakeHistoryService) -> None:
    for number in range(20):
        history.add(f"topic/{number % 3}", str(number).encode(), shard=0)
    history.broken_after = [7, 13]

    with flight.connect(history.address) as client:
        rows = client.read("#").read_all().to_pylist()

    for topic in ("topic/0", "topic/1", "topic/2"):
        of_topic = [row["position"] for row in rows if row["topic"] == topic]
        assert of_topic == sorted(of_topic)


def test_a_server_that_is_not_there_is_passed_over(history: FakeHistoryService) -> None:
    history.add("a")

    with flight.connect([closed_address(), history.address]) as client:
        assert client.shards().log == "00ff"
        assert client.read("a").read_all().num_rows == 1


def test_no_reachable_server_is_reported_soon_with_a_clear_message() -> None:
    address = closed_address()

    with (
        flight.connect(address, retry_s=0.3) as client,
        pytest.raises(Unavailable, match=f"no history service at grpc://{address} is available: .*refused"),
    ):
        client.shards()


def test_a_call_is_tried_again_until_the_service_is_ready(history: FakeHistoryService) -> None:
    history.unavailable = 3

    with flight.connect(history.address) as client:
        assert set(client.shards().shards) == {"0", "1"}


def test_a_server_that_comes_back_at_its_address_is_found_again(history: FakeHistoryService) -> None:
    port = history.port
    with flight.connect(history.address, retry_s=20) as client:
        client.shards()
        history.stop()
        with FakeHistoryService(log="beef", port=port):
            assert client.shards().log == "beef"


def test_the_range_that_retention_deleted_is_named_exactly(history: FakeHistoryService) -> None:
    history.add_many("a", 4, shard=1)
    history.expire(BEGINNING + 2 * SECOND)

    with flight.connect(history.address) as client, pytest.raises(DataLoss) as caught:
        client.plan(wire.Plan(["a"], start=wire.RangeBound(positions={"0": 0, "1": BEGINNING + SECOND})))

    assert caught.value.gaps == {1: wire.ShardGap(BEGINNING + SECOND, BEGINNING + 2 * SECOND + 1)}
    assert "shard 1: wanted everything after 1700000001000000 (2023-11-14T22:13:21.000000Z)" in str(caught.value)
    assert "the earliest kept is 1700000002000001 (2023-11-14T22:13:22.000001Z)" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_read_warns_of_deleted_records_and_returns_the_rest(history: FakeHistoryService) -> None:
    history.add_many("a", 4)
    history.expire(BEGINNING + 2 * SECOND)

    with flight.connect(history.address) as client:
        with pytest.warns(UserWarning, match="retention removed"):
            table = client.read("a", since="-1h").read_all()
        with pytest.raises(DataLoss):
            client.read("a", since="-1h", fail_on_data_loss=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.read("a", since="earliest").read_all()

    assert positions(table) == [BEGINNING + 3 * SECOND, BEGINNING + 4 * SECOND]


def test_a_refusal_says_what_to_check_and_not_the_password(history: FakeHistoryService) -> None:
    history.users = {"ann": "right"}

    with flight.connect(history.address, user="ann", password="s3cret-word") as client:
        with pytest.raises(UsageError, match="denied access: not authorized") as caught:
            client.shards()
        assert "s3cret-word" not in repr(client) + str(caught.value) + repr(caught.value)


def test_the_right_user_or_token_and_the_name_of_the_reader_are_shown(history: FakeHistoryService) -> None:
    history.users, history.tokens = {"ann": "right: of course"}, {"t0ken"}

    with flight.connect(history.address, user="ann", password="right: of course", reader="nightly") as client:
        client.shards()
    with flight.connect(history.address, token="t0ken") as client:
        client.shards()

    assert history.reader_names == {"nightly"}


def test_a_topic_that_may_not_be_read_is_refused(history: FakeHistoryService) -> None:
    history.hidden = {"secret/#"}

    with flight.connect(history.address) as client, pytest.raises(UsageError, match="secret/# may not be subscribed to"):
        client.read("secret/#")


@pytest.mark.parametrize(("filters", "message"), [("a/#/b", "not a topic filter"), ([], "at least one topic filter")])
def test_an_invalid_filter_is_rejected(history: FakeHistoryService, filters: str | list[str], message: str) -> None:
    with flight.connect(history.address) as client, pytest.raises(UsageError, match=message):
        client.read(filters)


def test_an_unknown_column_is_rejected_before_a_request_is_sent(history: FakeHistoryService) -> None:
    with flight.connect(history.address) as client, pytest.raises(UsageError, match="no column colour"):
        client.read("a", columns=["colour"])

    assert history.plans == []


def test_a_ticket_of_another_log_is_refused(history: FakeHistoryService) -> None:
    history.add("a", shard=0)
    with flight.connect(history.address) as client:
        ticket = wire.Ticket("beef", ["a"], 0, 0, BEGINNING + SECOND)

        with pytest.raises(UsageError, match="of the log beef"):
            list(client.stream(ticket))


def test_a_part_is_read_at_the_core_that_its_ticket_names(history: FakeHistoryService) -> None:
    with FakeHistoryService() as other:
        row = other.add("a", shard=1)
        ticket = wire.Ticket("00ff", ["a"], 1, 0, BEGINNING + SECOND, core="two", location=f"grpc://{other.address}")

        with flight.connect(history.address) as client:
            (batch,) = client.stream(wire.decode(wire.encode(ticket), wire.Ticket))
            client.shards()

    assert batch.column("position").to_pylist() == [row["position"]]
    assert (len(history.tickets), len(other.tickets)) == (0, 1)
    assert history.calls == [wire.SHARDS]  # the client still asks the server that it was given


def test_a_core_that_is_away_is_named(history: FakeHistoryService) -> None:
    gone = closed_address()
    with flight.connect(history.address, retry_s=0) as client:
        ticket = wire.Ticket("00ff", ["a"], 1, 0, 1, core="two", location=f"grpc://{gone}")

        with pytest.raises(Unavailable, match=f"core two is away: .*{gone}"):
            list(client.stream(ticket))


def test_credentials_are_not_sent_without_tls_because_a_ticket_says_so(history: FakeHistoryService) -> None:
    ticket = wire.Ticket("00ff", ["a"], 1, 0, 1, core="two", location=f"grpc://{history.address}")

    with flight.connect(f"grpc+tls://{history.address}") as client, pytest.raises(UsageError, match=r"core two .* without TLS"):
        list(client.stream(ticket))
    assert history.tickets == []


def test_advance_and_notes_reach_the_service(history: FakeHistoryService) -> None:
    history.add_many("a", 5, shard=0)
    with flight.connect(history.address) as client:
        advanced = client.advance(wire.Advance(["a"], {"0": 0, "1": 0}, rows_max=2))
        client.note_reader("nightly", {0: 7, 1: 9})

    assert advanced.end["0"] == BEGINNING + 2 * SECOND
    assert history.readers == {"nightly": {"0": 7, "1": 9}}


def test_a_stream_that_is_left_in_the_middle_leaves_the_client_usable(history: FakeHistoryService) -> None:
    history.add_many("a", 9, shard=0)
    with flight.connect(history.address) as client:
        (ticket, _), *_ = client.plan(wire.Plan(["a"])).parts
        stream = client.stream(ticket)

        first = next(stream)
        stream.close()

        assert first.num_rows == 3
        assert client.shards().log == "00ff"


def test_tls_is_spoken_and_the_name_of_the_server_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, own = authority.server("history.example"), authority.client()
    secured: dict[str, Any] = {
        "tls_certificates": [(Path(pair.cert_file).read_bytes(), Path(pair.key_file).read_bytes())],
        "verify_client": True,
        "root_certificates": Path(authority.cert_file).read_bytes(),
    }
    with FakeHistoryService(**secured) as service:
        keys: dict[str, Any] = {
            "ca_file": authority.cert_file,
            "cert_file": own.cert_file,
            "key_file": own.key_file,
            "retry_s": 0.2,
        }
        with flight.connect(f"grpc+tls://localhost:{service.port}", server_name="history.example", **keys) as client:
            assert client.shards().log == "00ff"
        with flight.connect(service.address, server_name="other.example", **keys) as client, pytest.raises(Unavailable):
            client.shards()
        no_certificate = flight.connect(service.address, ca_file=authority.cert_file, retry_s=0.2)
        with no_certificate as client, pytest.raises(Unavailable):
            client.shards()


def test_a_file_of_tls_that_is_not_there_is_named() -> None:
    with flight.connect("h:1", ca_file="/no/such/ca.pem") as client, pytest.raises(UsageError, match="/no/such/ca"):
        client.shards()


def test_a_client_is_made_and_shown_without_a_connection() -> None:
    client = HistoryClient("nowhere.invalid:1", Access(user="ann", password="pw"))

    assert repr(client) == "HistoryClient(grpc://nowhere.invalid:1; Access(user='ann', password='***'))"
    client.close()


def test_all_errors_are_of_braidmq(history: FakeHistoryService) -> None:
    history.batch_rows = 0  # which Python's range does not take
    history.add("a", shard=0)

    with flight.connect(history.address, retry_s=0.1) as client, pytest.raises(BraidError):
        client.read("a").read_all()
