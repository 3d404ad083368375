"""Readers that ask for too much, guess passwords, meddle with others' readers, or stay when they are no longer welcome."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow.flight as flight
import pytest

from braidmq.access import hashes
from braidmq.flight import wire
from braidmq.history.service import server
from braidmq.testing import Broker
from tests.history.service.conftest import Service
from tests.history.service.flight_calls import ask, basic, plan, problem_of, read
from tests.support.fakes.log_view import LOG


@pytest.mark.row("K8")
def test_too_many_filters_are_rejected_before_they_occupy_the_loop(service: Service) -> None:
    asked = service.access.asked
    with service.connect() as client, pytest.raises(flight.FlightServerError) as caught:
        client.get_flight_info(plan(*(f"plant/{number}" for number in range(100_000))))

    assert problem_of(caught.value).code == "bad-request"
    assert "at most 500 topic filters" in str(caught.value)
    assert service.access.asked == asked


@pytest.mark.row("K8")
@pytest.mark.parametrize("size", [50_000, 1_000_000])  # more than a question may have, and more than a message may
def test_a_request_that_is_too_long_for_the_node_is_refused_and_nothing_else_happens(service: Service, size: int) -> None:
    positions = {str(shard): 1 << 62 for shard in range(size)}
    with service.connect() as client:
        with pytest.raises(flight.FlightServerError) as caught:
            ask(client, wire.NOTE_READER, wire.NoteReader("nightly", positions, ["plant/#"]))
        assert problem_of(caught.value).code == "bad-request"

        assert read(client, plan("plant/#")) == ["plant/1/temp", "plant/2/temp"]
    assert service.log.readers.saved == {}


@pytest.mark.row("K8")
def test_guesses_by_handshake_are_counted_and_end_in_a_ban(tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text(f"ann:{hashes.make(b'secret')}\n")
    passwords.chmod(0o600)
    access = {"password_file": str(passwords), "ban_failures": 3}
    with Broker(history={"bind": "127.0.0.1:0", "anonymous": "none"}, access=access) as broker:
        assert broker.node is not None
        with flight.connect(f"grpc://127.0.0.1:{broker.history_port}") as client:
            for _ in range(3):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    client.authenticate_basic_token("ann", "wrong")

            with pytest.raises(flight.FlightUnauthenticatedError):
                client.authenticate_basic_token("ann", "secret")
            # Others' guesses keep nobody out who shows the password with a call, which has an address.
            assert client.get_flight_info(plan("#"), basic("ann", "secret")).schema


@pytest.mark.row("K8")
def test_moving_a_reader_requires_the_right_to_read_its_filters(closed_service: Service) -> None:
    note = wire.NoteReader("archive", {"0": 30})
    with closed_service.connect() as client, pytest.raises(flight.FlightUnauthorizedError):
        ask(client, wire.NOTE_READER, note, basic("bob", "other"))  # who may read plant/# only

    assert closed_service.log.readers.saved == {}


@pytest.mark.row("K8")
def test_a_user_cannot_move_the_reader_of_another_user(closed_service: Service) -> None:
    with closed_service.connect() as client:
        ask(client, wire.NOTE_READER, wire.NoteReader("archive", {"0": 10}), basic("ann", "secret"))
        with pytest.raises(flight.FlightUnauthorizedError, match="another user"):
            ask(client, wire.NOTE_READER, wire.NoteReader("archive", {"0": 30}, ["plant/#"]), basic("bob", "other"))

    assert closed_service.log.readers.saved == {"archive": {0: 10}}


@pytest.mark.row("K8")
def test_a_reader_without_an_owner_is_taken_over_by_a_named_user(closed_service: Service) -> None:
    readers = closed_service.log.readers
    readers.save("archive", {0: 10}, pins=True, on_saved=lambda: None, on_refused=None)
    with closed_service.connect() as client:
        ask(client, wire.NOTE_READER, wire.NoteReader("archive", {"0": 20}), basic("ann", "secret"))

    assert (readers.saved, readers.owner("archive")) == ({"archive": {0: 20}}, "ann")


@pytest.mark.row("K8")
def test_a_reader_cannot_be_moved_beyond_the_end_of_the_log(service: Service) -> None:
    with service.connect() as client:
        ask(client, wire.NOTE_READER, wire.NoteReader("eager", {"0": 1 << 50}, ["plant/#"]))

    assert service.log.readers.saved == {"eager": {0: 30}}


@pytest.mark.row("K8")
@pytest.mark.parametrize("change", ["the user is gone", "the rules have changed"])
def test_a_stream_ends_when_its_reader_loses_access(
    closed_service: Service, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(server, "_ASK_EVERY_S", 0.0)
    may_go_on = threading.Event()
    closed_service.view.before_row = lambda position: position == 10 or may_go_on.wait(20)
    everything = flight.Ticket(wire.encode(wire.Ticket(LOG, ["#"], 0, 0, 30)))
    with closed_service.connect() as client:
        stream = client.do_get(everything, basic("ann", "secret"))
        assert stream.read_chunk().data["position"].to_pylist() == [10]
        if change == "the user is gone":
            del closed_service.access.passwords["ann"]
        else:
            closed_service.access.allowed["ann"] = ("plant/#",)
        may_go_on.set()

        with pytest.raises(flight.FlightUnauthenticatedError if "user" in change else flight.FlightUnauthorizedError):
            stream.read_chunk()


@pytest.mark.row("K8")
def test_a_stream_slows_down_as_soon_as_the_node_is_busy(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_ASK_EVERY_S", 0.0)
    may_go_on = threading.Event()
    service.view.before_row = lambda position: position == 10 or may_go_on.wait(20)
    with service.connect() as client:
        [endpoint] = client.get_flight_info(plan("plant/#")).endpoints
        stream = client.do_get(endpoint.ticket)
        stream.read_chunk()
        assert service.rests == []
        service.burden.is_told_high = True
        may_go_on.set()

        stream.read_all()
    assert service.rests
