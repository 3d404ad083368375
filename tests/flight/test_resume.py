"""Streams that break off: each row once, for any order of rows in the next attempt, in bounded memory."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Unavailable
from braidmq.flight import wire
from braidmq.flight.client import HistoryClient
from braidmq.flight.resume import Resume
from braidmq.flight.retry import Retry

TICKET = wire.Ticket("00ff", ["#"], 0, 0, 99, columns=["topic"])


def batch_of(positions: list[int]) -> pa.RecordBatch:
    topics = pa.array([f"t/{position}" for position in positions])
    return pa.record_batch([topics, pa.array(positions, pa.int64())], names=["topic", "position"])


@given(st.lists(st.integers(1, 60), unique=True, min_size=1), st.lists(st.integers(0, 60), max_size=4), st.data())
def test_every_row_is_given_once_over_any_number_of_attempts(rows: list[int], breaks: list[int], data: st.DataObject) -> None:
    resuming = Resume(TICKET)
    given_rows: list[str] = []

    for after in [*breaks, len(rows)]:
        in_this_order = data.draw(st.permutations(rows))[:after]
        size = data.draw(st.integers(1, 7))
        for at in range(0, len(in_this_order), size):
            fresh = resuming.unseen(batch_of(in_this_order[at : at + size]))
            if fresh is not None:
                assert fresh.schema.names == ["topic"]
                assert fresh.num_rows
                given_rows += fresh.column("topic").to_pylist()
        resuming.begin_again()

    assert sorted(given_rows) == sorted(f"t/{position}" for position in rows)


def test_positions_are_requested_even_if_the_caller_does_not_want_them() -> None:
    assert Resume(TICKET).ticket.columns == ["topic", "position"]
    assert Resume(wire.Ticket("00ff", ["#"], 0, 0, 99)).ticket.columns is None


def test_a_stream_with_too_much_to_remember_cannot_be_resumed() -> None:
    resuming = Resume(TICKET, remembered_max=4)

    resuming.unseen(batch_of([1, 2, 3, 4]))
    assert resuming.can_resume
    resuming.unseen(batch_of([5]))

    assert not resuming.can_resume


def test_a_stream_that_cannot_be_resumed_fails_with_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    client = HistoryClient("nowhere.invalid:1")
    monkeypatch.setattr("braidmq.flight.client.Resume", lambda ticket: Resume(ticket, remembered_max=2))

    def attempt(location: str, ticket: wire.Ticket) -> object:
        yield batch_of([1, 2, 3])
        raise Unavailable("gone")

    monkeypatch.setattr(client, "_attempt", attempt)

    stream = client.stream(TICKET)
    assert next(stream).num_rows == 3
    with pytest.raises(Unavailable, match="broke off after 3 rows, too many to resume: gone"):
        next(stream)


def test_servers_are_asked_in_turn_with_growing_pauses_between_rounds() -> None:
    pauses: list[float] = []
    retry = Retry(["a", "b"], "b", 3600.0, pauses.append)
    asked = []

    for _ in range(8):
        asked.append(retry.location)
        retry.failed(Unavailable("gone"))

    assert asked == ["b", "a"] * 4
    assert len(pauses) == 4
    for pause, longest in zip(pauses, [0.1, 0.2, 0.4, 0.8], strict=True):
        assert longest / 2 <= pause <= longest


def test_patience_ends_with_the_names_of_the_servers() -> None:
    retry = Retry(["grpc://a:1", "grpc://b:2"], "grpc://a:1", 0.0, lambda pause: None)

    retry.failed(Unavailable("gone"))
    with pytest.raises(Unavailable, match="no history service at grpc://a:1, grpc://b:2 is available: gone"):
        retry.failed(Unavailable("gone"))
