"""What an operator sees and does, against a real node."""

from __future__ import annotations

import asyncio
import time

import pytest

from braidmq.base.config.sources import read_overrides
from braidmq.base.errors import ConfigError, UsageError
from braidmq.control.contract import BanInfo, PageRequest
from braidmq.mqtt.packets import MQTT311, SubscribeOption, Will
from braidmq.mqtt.properties import Properties
from braidmq.operations import pages
from tests.support.operated import Operated, qos0

FIRST = PageRequest()


def test_status_names_the_listeners_with_their_real_ports(node: Operated) -> None:
    node.connect()

    status = node.broker.call(node.operations.status)

    assert status.not_ready == ""
    assert status.connections == status.sessions == 1
    listeners = {f"{each.kind}:{each.name}": each for each in status.listeners}
    assert listeners["tcp:default"].bind == f"127.0.0.1:{node.broker.port}"
    assert listeners["tcp:default"].running
    assert listeners["tcp:default"].connections == 1
    assert listeners["ws:default"].connections == 0
    assert node.ask("listeners") == status.listeners


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_pages_of_clients_are_in_order_and_whole(node: Operated, limit: int) -> None:
    names = [f"c{i * 37 % 20:02d}" for i in range(20)]
    for name in names:
        node.connect(name)

    assert [client.client_id for client in node.all("clients", limit)] == sorted(names)


def test_a_long_list_is_cut_down_on_the_way_and_still_right(node: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SLICE", 10)
    client = node.connect()
    filters = [f"f/{i * 7919 % 500:03d}" for i in range(500)]
    client.subscribe(*filters)

    assert [topic.topic_filter for topic in node.all("topics", 5)] == sorted(filters)


def test_a_page_shows_only_names_that_contain_the_word(node: Operated) -> None:
    for name in ("lamp-1", "door-1", "lamp-2"):
        node.connect(name)

    page = node.ask("clients", PageRequest(contains="amp"))

    assert [client.client_id for client in page.items] == ["lamp-1", "lamp-2"]
    assert page.cursor == ""


def test_a_client_shows_its_session_connection_and_figures(node: Operated) -> None:
    began = time.time()
    will = Will("w/t", b"gone", 0, False, Properties(will_delay_interval=5))
    client = node.connect("me", persistent=True, keep_alive=30, will=will)
    client.subscribe(SubscribeOption("a", 1, retain_as_published=True), subscription_identifiers=(300,))
    client.send(qos0("a", b"x"))
    client.receive_publish()

    detail = node.ask("client", "me")

    assert detail.client.connected
    assert detail.client.protocol == "MQTT 5"
    assert detail.client.listener == "tcp:default"
    assert detail.client.peer.startswith("127.0.0.1:")
    assert (detail.client.clean_start, detail.client.keep_alive_s, detail.client.session_expiry_s) == (False, 30, 60)
    assert began - 1 <= detail.client.connected_at <= time.time() + 1
    assert detail.client.disconnected_at is None
    assert detail.will_topic == "w/t"
    assert (detail.messages_received, detail.messages_sent, detail.messages_dropped) == (1, 1, 0)
    assert detail.bytes_received > 0
    assert detail.bytes_sent > 0
    (subscription,) = detail.subscriptions
    assert (subscription.topic_filter, subscription.qos, subscription.retain_as_published) == ("a", 1, True)
    assert subscription.subscription_identifier == 300


def test_an_absent_client_shows_since_when_and_what_waits(node: Operated) -> None:
    client = node.connect("away", persistent=True, version=MQTT311)
    client.subscribe("q", qos=1)
    client.disconnect()
    node.connect().publish("q", b"12345", qos=1)  # which waits in the log, and not in its queue

    info = node.ask("client", "away").client

    assert not info.connected
    assert (info.peer, info.protocol, info.connected_at) == ("", "", None)
    assert abs(info.disconnected_at - time.time()) < 5
    assert (info.queue_messages, info.queue_bytes, info.subscriptions) == (0, 0, 1)
    assert node.ask("client", "nobody") is None


def test_kick_says_0x98_publishes_the_will_and_ends_the_session(node: Operated) -> None:
    watcher = node.connect()
    watcher.subscribe("w")
    client = node.connect("me", persistent=True, will=Will("w", b"gone", 0, False, Properties(will_delay_interval=50)))

    assert node.ask("kick", "me")

    client.expect_disconnect(0x98)
    assert watcher.receive_publish().payload == b"gone"
    assert node.ask("client", "me") is None
    assert not node.connect("me", persistent=True).connack.session_present
    assert node.metrics()["client_kicked"] == 1


def test_kick_ends_the_session_of_an_absent_client(node: Operated) -> None:
    client = node.connect("away", persistent=True)
    client.subscribe("q")
    client.disconnect()

    assert node.ask("kick", "away")

    assert not node.ask("kick", "away")
    assert node.metrics()["subscriptions_count"] == 0


def test_subscriptions_are_listed_by_client_then_filter(node: Operated) -> None:
    node.connect("b").subscribe("x", "$share/g/a", qos=2)
    node.connect("a").subscribe("z", "$exclusive/y")

    everything = [(each.client_id, each.topic_filter) for each in node.all("subscriptions", 3)]
    of_one = node.ask("subscriptions", FIRST, "b").items
    of_nobody = node.ask("subscriptions", FIRST, "nobody").items

    assert everything == [("a", "$exclusive/y"), ("a", "z"), ("b", "$share/g/a"), ("b", "x")]
    assert [(each.topic_filter, each.qos) for each in of_one] == [("$share/g/a", 2), ("x", 2)]
    assert of_nobody == []


def test_topics_count_their_subscribers(node: Operated) -> None:
    node.connect().subscribe("t/+", "$share/g/t/+")
    node.connect().subscribe("t/+", "u")

    topics = {topic.topic_filter: topic.subscribers for topic in node.ask("topics", FIRST).items}

    assert topics == {"t/+": 3, "u": 1}


def test_retained_messages_are_listed_and_removed(node: Operated) -> None:
    client = node.connect()
    client.publish("b", b"12", qos=1, retain=True, message_expiry_interval=100)
    client.publish("a/ü", b"123", retain=True)

    first, second = node.ask("retained", FIRST).items

    assert (first.topic, first.qos, first.payload_bytes, first.expires_at) == ("a/ü", 0, 3, None)
    assert (second.topic, second.qos, second.payload_bytes) == ("b", 1, 2)
    assert second.expires_at - second.stored_at == pytest.approx(100, abs=2)
    assert node.metrics()["retained_bytes"] == 5
    assert node.ask("retained_remove", "b")
    assert not node.ask("retained_remove", "b")
    assert [each.topic for each in node.ask("retained", FIRST).items] == ["a/ü"]
    assert node.metrics()["retained_bytes"] == 3


def test_a_ban_closes_the_connection_and_keeps_it_out(node: Operated) -> None:
    client = node.connect("bad")
    bystander = node.connect("good")

    node.ask("ban_add", BanInfo(kind="client", value="bad", reason="noisy", until=time.time() + 60))

    client.expect_disconnect(0x87)
    again = node.connect.open()
    again.send_request(client_id="bad")
    again.expect_refusal(0x8A)
    bystander.ping()
    (ban,) = node.ask("bans", FIRST).items
    assert (ban.kind, ban.value, ban.reason) == ("client", "bad", "noisy")
    assert node.metrics()["bans_count"] == 1
    assert node.ask("ban_remove", "client", "bad")
    assert not node.ask("ban_remove", "client", "bad")
    node.connect("bad")


def test_a_ban_in_the_past_and_a_ban_of_no_address_are_refused(node: Operated) -> None:
    with pytest.raises(UsageError):
        node.ask("ban_add", BanInfo(kind="client", value="x", until=time.time() - 1))
    with pytest.raises(UsageError):
        node.ask("ban_add", BanInfo(kind="address", value="not an address"))
    assert not node.ask("ban_remove", "address", "not an address")


def test_an_automatic_ban_is_shown_and_lifted_by_what_it_shows(node: Operated) -> None:
    bans = node.node.access.bans
    node.broker.call(lambda: bans.add(user_name="alice", address="192.0.2.7"))

    (ban,) = node.ask("bans", FIRST).items

    assert (ban.kind, ban.value) == ("user", "alice from 192.0.2.7")
    assert node.ask("ban_remove", ban.kind, ban.value)
    assert node.ask("bans", FIRST).items == []


def test_a_value_set_at_run_time_takes_effect_and_is_kept(node: Operated) -> None:
    value = node.ask("conf_set", "mqtt.receive_maximum", "7")

    assert (value.key, value.value, value.origin, value.note) == ("mqtt.receive_maximum", "7", "run time", "")
    assert node.connect().connack.properties.receive_maximum == 7
    assert read_overrides(node.broker.data_dir) == {"mqtt.receive_maximum": 7}
    (shown,) = node.ask("conf_show", "mqtt.receive_maximum")
    assert (shown.value, shown.origin) == ("7", "run time")

    back = node.ask("conf_unset", "mqtt.receive_maximum")

    assert (back.value, back.origin) == ("1000", "default")
    assert read_overrides(node.broker.data_dir) == {}
    assert node.connect().connack.properties.receive_maximum == 1000


def test_a_value_that_needs_a_restart_says_so(node: Operated) -> None:
    assert "after a restart" in node.ask("conf_set", "api.bind", "127.0.0.1:9").note


def test_a_wrong_value_changes_nothing(node: Operated) -> None:
    with pytest.raises(ConfigError):
        node.ask("conf_set", "mqtt.receive_maximum", "0")
    with pytest.raises(ConfigError):
        node.ask("conf_set", "node.name", "other")
    with pytest.raises(ConfigError):
        node.ask("conf_unset", "mqtt.recieve_maximum")
    with pytest.raises(ConfigError):
        node.ask("conf_show", "nothing")

    assert read_overrides(node.broker.data_dir) == {}
    assert node.ask("conf_show", "mqtt.receive_maximum")[0].value == "1000"


def test_two_changes_at_once_are_both_kept(node: Operated) -> None:
    async def both() -> None:
        set_ = node.operations.conf_set
        await asyncio.gather(set_("mqtt.receive_maximum", "7"), set_("mqtt.keep_alive_max", "9"))

    node.broker.run(both())

    assert read_overrides(node.broker.data_dir) == {"mqtt.receive_maximum": 7, "mqtt.keep_alive_max": 9}


def test_the_log_level_is_set_and_shown(node: Operated) -> None:
    before = node.ask("log_level")
    try:
        assert node.ask("log_level", "error") == "error"
        assert node.ask("log_level") == "error"
    finally:
        node.ask("log_level", before)
