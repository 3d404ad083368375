"""What every table of ``$exclusive`` subscriptions does: one filter, one client."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.broker.session.local import LocalExclusiveTopics
from braidmq.broker.session.ports import ExclusiveTopics


@pytest.fixture(params=[LocalExclusiveTopics], ids=lambda make: str(make.__name__))
def topics(request: pytest.FixtureRequest) -> ExclusiveTopics:
    make: Callable[[], ExclusiveTopics] = request.param
    return make()


def test_a_filter_is_free_until_a_client_takes_it(topics: ExclusiveTopics) -> None:
    assert topics.is_free(b"t", "one")

    topics.take(b"t", "one")

    assert topics.is_free(b"t", "one"), "its own client may subscribe again"
    assert not topics.is_free(b"t", "two")
    assert topics.is_free(b"t/2", "two")


def test_only_its_client_releases_a_filter(topics: ExclusiveTopics) -> None:
    topics.take(b"t", "one")

    topics.release(b"t", "two")
    assert not topics.is_free(b"t", "two")
    topics.release(b"t", "one")

    assert topics.is_free(b"t", "two")


def test_taking_or_releasing_a_filter_twice_has_no_further_effect(topics: ExclusiveTopics) -> None:
    topics.take(b"t", "one")
    topics.take(b"t", "one")

    topics.release(b"t", "one")
    topics.release(b"t", "one")

    assert topics.is_free(b"t", "two")


def test_the_local_table_keeps_nothing_of_a_filter_that_was_released() -> None:
    topics = LocalExclusiveTopics()
    topics.take(b"t", "one")

    topics.release(b"t", "one")

    assert len(topics) == 0
