"""Returned messages of a shared group: their order, and what is read again."""

from __future__ import annotations

from braidmq.broker.shared.returned import ReturnedMessages


def test_returned_messages_come_in_order_of_time_across_shards() -> None:
    returned = ReturnedMessages()
    for each in [(0, 30), (1, 10), (0, 20)]:
        returned.put(each, None)

    order = []
    while (place := returned.first()) is not None:
        order.append(place)
        returned.remove(place)

    assert order == [(1, 10), (0, 20), (0, 30)]


def test_a_message_that_is_returned_again_is_there_once() -> None:
    returned = ReturnedMessages()
    returned.put((0, 10), None)
    returned.put((0, 10), None)
    returned.remove((0, 10))

    assert returned.first() is None


def test_an_older_message_that_comes_back_meanwhile_stays() -> None:
    returned = ReturnedMessages()
    returned.put((0, 20), None)
    assert returned.first() == (0, 20)
    returned.put((0, 10), None)

    returned.remove((0, 20))

    assert returned.first() == (0, 10)
    returned.remove((0, 10))
    assert returned.first() is None
