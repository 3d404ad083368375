"""What the oracle of the session model says about the order of first deliveries."""

from __future__ import annotations

import pytest

from braidmq.mqtt.packets import Publish
from tests.support.simulator.delivery_order import DeliveryOrder, Stream

QOS_0: Stream = ("p", "t", 1, 0)
QOS_1: Stream = ("p", "t", 1, 1)


def sent(number: int, qos: int = 0, *, retain: bool = False) -> Publish:
    return Publish("t", b"%d" % number, qos, retain, packet_id=1 if qos else None)


def order_with(*sent_twice: int, lost: Publish | None = None, refused: int = -1) -> DeliveryOrder:
    order = DeliveryOrder(set(sent_twice).__contains__, {refused}.__contains__)
    order.note_lost([] if lost is None else [lost])
    return order


def test_a_message_must_not_come_for_the_first_time_after_a_later_one() -> None:
    order = order_with()
    order.on_delivery(4, QOS_0)

    with pytest.raises(AssertionError, match="3 came after 4"):
        order.on_delivery(3, QOS_0)


def test_a_repeated_delivery_may_come_after_a_later_message() -> None:
    order = order_with()

    for number in (3, 4, 3, 5):
        order.on_delivery(number, QOS_1)

    assert order.delivered == {3, 4, 5}


def test_messages_of_other_streams_may_come_in_any_order() -> None:
    order = order_with()

    order.on_delivery(4, QOS_0)
    order.on_delivery(3, QOS_1)

    assert order.delivered == {3, 4}


def test_the_resent_copy_of_a_message_lost_with_qos_0_may_come_late() -> None:
    order = order_with(3, lost=sent(3))

    order.on_delivery(4, QOS_0)
    order.on_delivery(3, QOS_0)

    assert order.delivered == {3, 4}


@pytest.mark.parametrize("stream", [QOS_0, QOS_1])
def test_a_message_resent_because_its_rejection_was_lost_may_come_late(stream: Stream) -> None:
    order = order_with(refused=3)

    order.on_delivery(4, stream)
    order.on_delivery(3, stream)

    assert order.delivered == {3, 4}


def test_a_late_copy_does_not_excuse_the_next_message() -> None:
    order = order_with(1, lost=sent(1))
    order.on_delivery(4, QOS_0)
    order.on_delivery(1, QOS_0)

    with pytest.raises(AssertionError, match="3 came after 4"):
        order.on_delivery(3, QOS_0)


@pytest.mark.parametrize(
    ("order", "stream"),
    [
        pytest.param(order_with(3), QOS_0, id="resent but not lost"),
        pytest.param(order_with(lost=sent(3)), QOS_0, id="lost but not resent"),
        pytest.param(order_with(3, lost=sent(3)), QOS_1, id="delivered with QoS 1"),
        pytest.param(order_with(3, lost=sent(3, 1)), QOS_0, id="lost with QoS 1"),
        pytest.param(order_with(3, lost=sent(3, retain=True)), QOS_0, id="lost as a retained message"),
        pytest.param(order_with(3, lost=sent(2)), QOS_0, id="another one lost"),
        pytest.param(order_with(3, refused=2), QOS_1, id="another one rejected"),
    ],
)
def test_no_other_message_may_come_late(order: DeliveryOrder, stream: Stream) -> None:
    order.on_delivery(4, stream)

    with pytest.raises(AssertionError, match="3 came after 4"):
        order.on_delivery(3, stream)


def test_a_new_session_has_an_order_of_its_own() -> None:
    order = order_with(3, lost=sent(3))
    order.on_delivery(4, QOS_0)

    order.clear()
    order.on_delivery(2, QOS_0)
    order.on_delivery(4, QOS_0)

    with pytest.raises(AssertionError, match="3 came after 4"):
        order.on_delivery(3, QOS_0)
