"""The Flight service: authentication, what may be read, and error answers."""

from __future__ import annotations

import pyarrow.flight as flight
import pytest

from braidmq.flight import connect, wire
from braidmq.flight.client import HistoryClient
from tests.history.service.conftest import Service
from tests.history.service.flight_calls import ask, basic, bearer, plan, problem_of, read
from tests.support.fakes.log_view import LOG


def test_a_reader_gets_what_matches_its_filters(service: Service) -> None:
    with service.connect() as client:
        assert read(client, plan("plant/+/temp")) == ["plant/1/temp", "plant/2/temp"]
        assert read(client, flight.FlightDescriptor.for_path("plant/2/temp")) == ["plant/2/temp"]


def test_a_call_sees_everything_committed_before_it(service: Service) -> None:
    service.log.watermarks = {0: 10}
    with service.connect() as client:
        assert read(client, plan("plant/#")) == ["plant/1/temp"]

        service.log.watermarks = {0: 30}

        assert read(client, plan("plant/#")) == ["plant/1/temp", "plant/2/temp"]
        shards = wire.decode(ask(client, wire.SHARDS, wire.Nothing()), wire.Shards)
        assert shards.shards["0"].latest == 30


def test_columns_are_those_asked_for(service: Service) -> None:
    with service.connect() as client:
        info = client.get_flight_info(plan("plant/#", columns=["position", "topic"]))

        assert info.schema.names == ["position", "topic"]
        assert client.do_get(info.endpoints[0].ticket).read_all().column_names == ["position", "topic"]
        assert client.get_schema(plan("plant/#", columns=["qos"])).schema.names == ["qos"]


def test_an_unknown_column_is_rejected_with_the_names_of_all_columns(service: Service) -> None:
    with service.connect() as client, pytest.raises(flight.FlightServerError) as caught:
        client.get_flight_info(plan("plant/#", columns=["temperature"]))

    assert problem_of(caught.value).code == "bad-request"
    assert "temperature" in str(caught.value)
    assert "store_timestamp" in str(caught.value)


def test_anonymous_access_is_rejected_where_it_is_not_allowed(closed_service: Service) -> None:
    with closed_service.connect() as client, pytest.raises(flight.FlightUnauthenticatedError) as caught:
        client.get_flight_info(plan("plant/#"))

    assert problem_of(caught.value).code == "unauthenticated"


@pytest.mark.parametrize("password", ["wrong", "", "secret "])
def test_a_wrong_password_is_refused_and_not_repeated_in_the_answer(closed_service: Service, password: str) -> None:
    with closed_service.connect() as client, pytest.raises(flight.FlightUnauthenticatedError) as caught:
        read(client, plan("#"), basic("ann", password))

    assert "secret" not in str(caught.value)


def test_a_password_login_reports_its_address_to_the_broker(closed_service: Service) -> None:
    with closed_service.connect() as client:
        assert read(client, plan("#"), basic("ann", "secret")) == ["plant/1/temp", "plant/2/temp", "office/door"]

    assert {each.peer_host for each in closed_service.access.seen} == {"127.0.0.1"}


def test_a_handshake_gives_a_token_that_stands_for_the_password(closed_service: Service) -> None:
    with closed_service.connect() as client:
        header = client.authenticate_basic_token("bob", "other")
        options = flight.FlightCallOptions(headers=[header])

        assert read(client, plan("plant/#"), options) == ["plant/1/temp", "plant/2/temp"]


def test_the_token_of_a_removed_user_is_rejected(closed_service: Service) -> None:
    token = closed_service.tokens.make("bob", b"other", 60)
    del closed_service.access.passwords["bob"]

    with closed_service.connect() as client, pytest.raises(flight.FlightUnauthenticatedError):
        read(client, plan("plant/#"), bearer(token))


@pytest.mark.parametrize("shown", [b"Bearer nonsense", b"Basic %%%", b"Digest a", b"", b"Basic " + b"\xff" * 8])
def test_malformed_headers_are_rejected(closed_service: Service, shown: bytes) -> None:
    options = flight.FlightCallOptions(headers=[(b"authorization", shown)])
    with closed_service.connect() as client, pytest.raises(flight.FlightError):
        client.get_flight_info(plan("plant/#"), options)


def test_a_reader_sees_only_what_it_may_subscribe_to(closed_service: Service) -> None:
    with closed_service.connect() as client, pytest.raises(flight.FlightUnauthorizedError) as caught:
        read(client, plan("plant/#", "office/#"), basic("bob", "other"))

    assert problem_of(caught.value).code == "forbidden"
    assert "'office/#'" in str(caught.value)
    assert "plant" not in str(caught.value)


def test_a_ticket_opens_nothing_that_its_bearer_may_not_read(closed_service: Service) -> None:
    forged = flight.Ticket(wire.encode(wire.Ticket(LOG, ["#"], 0, 0, 30)))

    with closed_service.connect() as client, pytest.raises(flight.FlightUnauthorizedError):
        client.do_get(forged, basic("bob", "other")).read_all()


def test_rules_that_change_after_the_plan_fail_the_read(closed_service: Service) -> None:
    with closed_service.connect() as client:
        info = client.get_flight_info(plan("#"), basic("ann", "secret"))
        closed_service.access.allowed["ann"] = ("plant/#",)

        with pytest.raises(flight.FlightUnauthorizedError):
            client.do_get(info.endpoints[0].ticket, basic("ann", "secret")).read_all()


@pytest.mark.parametrize("bad", ["a/#/b", "a+", "", "$share/g/a", "$replay/earliest/a"])
def test_an_invalid_filter_is_rejected_with_a_clear_message(service: Service, bad: str) -> None:
    with service.connect() as client, pytest.raises(flight.FlightServerError) as caught:
        client.get_flight_info(plan(bad))

    assert problem_of(caught.value).code == "bad-request"


@pytest.mark.parametrize(
    "command", [b"", b"{}", b"[1]", b'{"filters": ["a"], "unknown": 1}', b'{"filters": ["a"], "version": 9}']
)
def test_unknown_commands_are_rejected_with_a_clear_message(service: Service, command: bytes) -> None:
    with service.connect() as client, pytest.raises(flight.FlightServerError) as caught:
        client.get_flight_info(flight.FlightDescriptor.for_command(command))

    assert problem_of(caught.value).code == "bad-request"


def test_a_loss_is_reported_with_its_gap(service: Service) -> None:
    with service.connect() as client, pytest.raises(flight.FlightServerError) as caught:
        client.get_flight_info(plan("plant/#", start=wire.RangeBound(positions={"0": 5})))

    assert problem_of(caught.value).gaps == {"0": wire.ShardGap(5, 10)}


def test_an_internal_error_is_logged_and_not_shown(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    service.view.fault = RuntimeError("the table at /secret/place broke")
    with service.connect() as client, pytest.raises(flight.FlightError) as caught:
        read(client, plan("plant/#"))

    assert "/secret/place" not in str(caught.value)
    assert "/secret/place" in caplog.text


def test_the_streams_of_one_reader_are_bounded(service: Service) -> None:
    for _ in range(2):
        service.server.quotas.begin("host 127.0.0.1")
    with service.connect() as client:
        with pytest.raises(flight.FlightUnavailableError) as caught:
            read(client, plan("plant/#"))
        assert problem_of(caught.value).code == "busy"

        service.server.quotas.end("host 127.0.0.1")

        assert read(client, plan("plant/#")) == ["plant/1/temp", "plant/2/temp"]
    assert service.server.quotas.served().streams == 1


@pytest.mark.row("K11")
def test_a_client_waits_for_a_free_stream_though_it_would_give_up_a_lost_server_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = service.server.quotas
    for _ in range(2):
        quotas.begin("host 127.0.0.1")
    begin, attempts = quotas.begin, 0

    def begin_or_free_one(key: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 4:
            quotas.end(key)
        begin(key)

    monkeypatch.setattr(quotas, "begin", begin_or_free_one)

    with HistoryClient(f"127.0.0.1:{service.server.port}", retry_s=0.0) as client:
        rows = client.read("plant/#").read_all()

    assert sorted(rows["topic"].to_pylist()) == ["plant/1/temp", "plant/2/temp"]
    assert quotas.served().refused == 3


def test_a_reader_keeps_its_place_at_the_broker(service: Service) -> None:
    with service.connect() as client:
        ask(client, wire.NOTE_READER, wire.NoteReader("nightly", {"0": 20}, ["plant/#"]))

    assert service.log.readers.saved == {"nightly": {0: 20}}
    assert service.log.readers.filters == {"nightly": ["plant/#"]}


def test_a_backlog_is_of_the_filters_that_are_asked_for_and_may_be_read(service: Service) -> None:
    with service.connect() as client:
        answer = ask(client, wire.BACKLOG, wire.AskBacklog(["plant/2/temp"], {"0": 0}))
        with pytest.raises(flight.FlightUnauthorizedError, match="office"):
            ask(client, wire.BACKLOG, wire.AskBacklog(["office/#"], {"0": 0}))

    assert wire.decode(answer, wire.Backlog) == wire.Backlog(1, is_estimate=False)


@pytest.mark.parametrize("is_busy", [False, True])
def test_rows_come_in_small_pieces_with_rests_while_the_node_is_busy(service: Service, is_busy: bool) -> None:
    service.burden.is_told_high = is_busy
    service.view.records = [(number, "plant/1/temp", bytes(30_000)) for number in range(1, 31)]
    service.view.rows_at_once = 30
    with service.connect() as client:
        [endpoint] = client.get_flight_info(plan("plant/#")).endpoints
        batches = [each.data for each in client.do_get(endpoint.ticket)]

    assert [position for batch in batches for position in batch["position"].to_pylist()] == [*range(1, 31)]
    if is_busy:
        assert max(batch.nbytes for batch in batches) < 200_000
        assert len(service.rests) == len(batches)
    else:
        assert len(batches) == 1
        assert service.rests == []


def test_calls_are_unavailable_while_the_node_is_gone(service: Service) -> None:
    service.hang_up()
    with service.connect() as client, pytest.raises(flight.FlightUnavailableError) as caught:
        client.get_flight_info(plan("plant/#"))

    assert problem_of(caught.value).code == "unavailable"


def test_an_unknown_action_is_rejected_with_the_names_of_all_actions(service: Service) -> None:
    with service.connect() as client:
        with pytest.raises(flight.FlightServerError, match="advance"):
            list(client.do_action(flight.Action("format", b"{}")))
        assert {each.type for each in client.list_actions()} == {wire.SHARDS, wire.ADVANCE, wire.NOTE_READER, wire.BACKLOG}


@pytest.mark.parametrize("name", ["nightly", "Nachtläufer 5 %", "100%25", "夜/a+b"])
def test_a_reader_may_have_any_name(service: Service, name: str) -> None:
    with connect(f"127.0.0.1:{service.server.port}", reader=name) as client:
        client.note_reader(name, {0: 20}, ["plant/#"])

    assert {each.client_id for each in service.access.seen} == {name}
    assert service.log.readers.saved == {name: {0: 20}}


def test_a_reader_name_that_is_not_valid_text_is_rejected_with_a_clear_message(service: Service) -> None:
    options = flight.FlightCallOptions(headers=[(b"x-braidmq-reader", b"%ff")])
    with service.connect() as client, pytest.raises(flight.FlightServerError) as caught:
        client.get_flight_info(plan("plant/#"), options)

    assert problem_of(caught.value).code == "bad-request"
