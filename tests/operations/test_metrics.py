"""The figures of a real node, counted against what clients did."""

from __future__ import annotations

from braidmq.api.metric_names import METRICS
from braidmq.mqtt.packets import SubscribeOption
from tests.support.operated import Operated


def test_metrics_has_every_name_but_the_certificates_of_a_node_without_any(node: Operated) -> None:
    assert METRICS.keys() - node.metrics().keys() == {"cert_expiry_at"}
    assert node.metrics().keys() <= METRICS.keys()


def test_metrics_follow_a_publish_from_client_to_client(node: Operated) -> None:
    subscriber, publisher = node.connect(), node.connect()
    subscriber.subscribe("a/#", qos=1)
    before = node.metrics()

    publisher.publish("a/b", b"12345", qos=1)
    message = subscriber.receive_publish()
    subscriber.ping()

    assert message.payload == b"12345"
    rise = {name: value for name, value in node.rise(before).items() if not name.startswith(("history_", "bytes_"))}
    assert rise == {
        "messages_received": 1, "messages_qos1_received": 1, "messages_sent": 1, "messages_qos1_sent": 1,
        "messages_publish": 1, "messages_acked": 1, "messages_delivered": 1,
        "packets_received": 3, "packets_publish_received": 1, "packets_puback_received": 1, "packets_pingreq_received": 1,
        "packets_sent": 3, "packets_publish_sent": 1, "packets_puback_sent": 1, "packets_pingresp_sent": 1,
    }  # fmt: skip


def test_gauges_of_queue_and_window_come_back_to_zero(node: Operated) -> None:
    gone = node.connect("gone", persistent=True)
    gone.subscribe("q", qos=2)
    gone.disconnect()
    slow = node.connect("slow", receive_maximum=2)
    slow.subscribe("q", qos=1)
    publisher = node.connect()

    for _ in range(5):
        publisher.publish("q", b"x" * 9, qos=2)

    # What waits is in the log; a queue is for what is not recorded.
    full = node.metrics()
    assert (full["queue_messages_count"], full["queue_bytes_count"], full["inflight_count"]) == (0, 0, 2)
    for _ in range(5):
        slow.receive_publish()
    slow.ping()
    assert node.metrics()["inflight_count"] == 0
    back = node.connect("gone", persistent=True)
    for _ in range(5):
        back.receive_publish()
    back.ping()
    empty = node.metrics()
    assert (empty["queue_messages_count"], empty["queue_bytes_count"], empty["inflight_count"]) == (0, 0, 0)


def test_messages_that_an_ending_session_still_holds_are_counted_as_dropped(node: Operated) -> None:
    gone = node.connect("gone", persistent=True, receive_maximum=1)
    gone.subscribe("q", qos=1)
    node.connect().publish("q", b"in flight", qos=1)
    gone.receive_publishes(1)
    node.connect().publish("q", b"in the log", qos=1)
    before = node.metrics()

    assert node.ask("kick", "gone")

    after = node.metrics()
    assert after["delivery_dropped_session_ended"] - before["delivery_dropped_session_ended"] == 1
    assert (after["queue_messages_count"], after["inflight_count"]) == (0, 0)


def test_drops_are_counted_by_reason(node: Operated) -> None:
    client = node.connect()
    absent = node.connect("absent", persistent=True)
    absent.subscribe("absent")
    absent.disconnect()
    small = node.connect(maximum_packet_size=100)
    small.subscribe("small")
    own = node.connect("own")
    own.subscribe(SubscribeOption("own", 0, no_local=True))
    before = node.metrics()

    assert client.publish("nobody", qos=1) == 0x10
    client.publish("absent")
    client.publish("small", b"x" * 200)
    own.publish("own")
    assert client.publish("$SYS/mine", qos=1) == 0x87

    rise = node.rise(before)
    assert {name: count for name, count in rise.items() if "dropped" in name} == {
        "messages_dropped": 2 + 1, "messages_dropped_no_subscribers": 2, "messages_dropped_reserved": 1,
        "delivery_dropped": 3, "delivery_dropped_qos0_msg": 1, "delivery_dropped_too_large": 1, "delivery_dropped_no_local": 1,
    }  # fmt: skip


def test_subscription_counts_include_every_member_of_a_group(node: Operated) -> None:
    first, second = node.connect(), node.connect()

    first.subscribe("$share/g/t/+", "t/+", "x")
    second.subscribe("$share/g/t/+", "x")

    metrics = node.metrics()
    assert (metrics["subscriptions_count"], metrics["subscriptions_shared_count"], metrics["topics_count"]) == (5, 2, 2)
    second.unsubscribe("$share/g/t/+", "x")
    metrics = node.metrics()
    assert (metrics["subscriptions_count"], metrics["subscriptions_shared_count"], metrics["topics_count"]) == (3, 1, 2)
    first.disconnect()
    metrics = node.metrics()
    assert (metrics["subscriptions_count"], metrics["subscriptions_shared_count"], metrics["topics_count"]) == (0, 0, 0)
