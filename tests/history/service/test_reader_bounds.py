"""Retention waits for every named reader, so that one user cannot have all of them, and a stranger none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.access import hashes, passwords
from braidmq.base.errors import UsageError
from braidmq.flight import connect
from braidmq.flight.client import HistoryClient
from braidmq.operations import NodeOperations
from braidmq.storage.rows.changes import WriteRefusal
from braidmq.testing import Broker

READERS_MAX = 2
SERVED = {"bind": "127.0.0.1:0", "named_readers_max": READERS_MAX}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Knows ann, bob and cay, and lets anonymous readers in as well."""
    path = str(tmp_path_factory.mktemp("access") / "passwords")
    for name in ("ann", "bob", "cay"):
        passwords.set_password(path, name, hashes.make(name.encode()), None)
    with Broker(history=SERVED, access={"password_file": path}) as broker:
        yield broker


def reader_of(broker: Broker, user: str | None = None) -> HistoryClient:
    """A client of this user."""
    shown: dict[str, Any] = {} if user is None else {"user": user, "password": user}
    return connect(f"127.0.0.1:{broker.history_port}", **shown)


def names(broker: Broker) -> set[str]:
    """All readers that the log knows."""
    node = broker.node
    assert node is not None
    return set(broker.call(lambda: node.log.readers.names))


def metric(broker: Broker, name: str) -> float:
    """What the node counts."""
    assert broker.node is not None
    return float(broker.call(NodeOperations(broker.node).metrics)[name])


def save(broker: Broker, name: str, position: int) -> None:
    """A reader without an owner, created before users were configured."""
    assert broker.node is not None
    log = broker.node.log
    failed: list[WriteRefusal] = []
    broker.call(lambda: log.readers.save(name, {0: position}, pins=True, on_saved=lambda: None, on_refused=failed.append))
    broker.call(log.flush)
    assert not failed


@pytest.mark.row("K9")
def test_a_user_has_a_bounded_number_of_named_readers_and_others_have_theirs(broker: Broker) -> None:
    refused = metric(broker, "history_readers_refused")
    with reader_of(broker, "ann") as ann, reader_of(broker, "bob") as bob:
        for number in range(READERS_MAX):
            ann.note_reader(f"ann {number}", {0: 1})
        with pytest.raises(UsageError, match="named_readers_max"):
            ann.note_reader("one more", {0: 1})

        ann.note_reader("ann 0", {0: 1})
        bob.note_reader("bob", {0: 1})

    assert {"ann 0", "ann 1", "bob"} <= names(broker)
    assert "one more" not in names(broker)
    assert metric(broker, "history_readers_refused") == refused + 1
    assert metric(broker, "history_readers_count") == len(names(broker))


@pytest.mark.row("K9")
def test_a_reader_without_a_user_makes_no_named_reader_where_there_are_users(broker: Broker) -> None:
    with reader_of(broker) as stranger:
        assert stranger.shards().shards, "it may read"
        with pytest.raises(UsageError, match="log in"):
            stranger.note_reader("planted", {0: 1})

    assert "planted" not in names(broker)


@pytest.mark.row("K9")
def test_a_reader_without_an_owner_continues_and_counts_for_the_user_who_takes_it_over(broker: Broker) -> None:
    for number in range(READERS_MAX + 1):
        save(broker, f"old {number}", 1)
    with reader_of(broker) as job, reader_of(broker, "cay") as cay:
        job.note_reader("old 0", {0: 1})
        for number in range(READERS_MAX):
            cay.note_reader(f"old {number}", {0: 1})
        with pytest.raises(UsageError, match="named_readers_max"):
            cay.note_reader(f"old {READERS_MAX}", {0: 1})
        with pytest.raises(UsageError, match="another user"):
            job.note_reader("old 0", {0: 1})


@pytest.mark.row("K9")
def test_without_users_readers_without_an_owner_share_one_bound() -> None:
    with Broker(history=SERVED) as broker, reader_of(broker) as job:
        for number in range(READERS_MAX):
            job.note_reader(f"job {number}", {0: 1})
        with pytest.raises(UsageError, match="named_readers_max"):
            job.note_reader("one more", {0: 1})
