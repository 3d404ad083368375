"""Access withdrawn while messages are queued: nothing more is delivered after the change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.access import hashes
from braidmq.mqtt.packets import MQTT5, MQTT311, Puback, Publish, Will
from tests.support.stage import Stage

both_versions = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])

EVERYTHING = "topic readwrite #\n"
ALL_BUT_SECRETS = "topic readwrite #\ntopic deny secret/#\n"


class Rules:
    """A broker whose ACL file the test rewrites."""

    def __init__(self, start: Callable[..., Stage], file: Path, **tables: dict[str, object]) -> None:
        self._file = file
        file.write_text(EVERYTHING)
        self.stage = start(access={"acl_file": str(file)}, **tables)

    def change(self, content: str) -> None:
        """From now on these rules hold."""
        self._file.write_text(content)
        node = self.stage.broker.node
        assert node is not None
        self.stage.broker.run(node.access.reload())


@pytest.mark.row(42)
@both_versions
@pytest.mark.parametrize("topic_filter", ["secret/#", "secret/a", "$share/g/secret/a", "$exclusive/secret/a"])
def test_a_subscription_ends_when_access_to_it_is_withdrawn(
    start: Callable[..., Stage], tmp_path: Path, version: int, topic_filter: str
) -> None:
    rules = Rules(start, tmp_path / "rules")
    reader, writer = rules.stage.connect("reader", version=version, user_name="r"), rules.stage.connect("writer")
    reader.subscribe(topic_filter, "open/#", qos=1)

    rules.change("topic write #\ntopic read open/#\n")
    writer.publish("secret/a", b"secret", qos=1)
    writer.publish("open/a", b"open", qos=1)

    assert reader.receive_publish().payload == b"open"
    reader.expect_silence()


@pytest.mark.row(42)
@both_versions
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_queued_for_an_offline_client_are_not_delivered_after_the_change(
    start: Callable[..., Stage], tmp_path: Path, version: int, qos: int
) -> None:
    rules = Rules(start, tmp_path / "rules")
    reader, writer = rules.stage.connect("reader", version=version, persistent=True), rules.stage.connect("writer")
    reader.subscribe("secret/#", "open/#", qos=qos)
    reader.disconnect()
    for number in range(5):
        writer.publish("secret/a", b"secret %d" % number, qos=qos)
        writer.publish("open/a", b"open %d" % number, qos=qos)

    rules.change("topic write #\ntopic read open/#\n")
    back = rules.stage.connect("reader", version=version, persistent=True)

    assert [back.receive_publish().payload for _ in range(5)] == [b"open %d" % number for number in range(5)]
    back.expect_silence()


@pytest.mark.row(42)
def test_messages_queued_behind_a_full_window_are_not_delivered_after_the_change(
    start: Callable[..., Stage], tmp_path: Path
) -> None:
    rules = Rules(start, tmp_path / "rules")
    reader, writer = rules.stage.connect("reader", receive_maximum=1), rules.stage.connect("writer")
    reader.subscribe("secret/#", qos=1)
    for number in range(5):
        writer.publish("secret/a", b"secret %d" % number, qos=1)
    first = reader.receive(Publish)

    rules.change(ALL_BUT_SECRETS)
    assert first.packet_id is not None
    reader.send(Puback(first.packet_id))

    assert first.payload == b"secret 0"
    reader.expect_silence()


@pytest.mark.row(42)
def test_inflight_messages_are_not_resent_after_the_change(start: Callable[..., Stage], tmp_path: Path) -> None:
    rules = Rules(start, tmp_path / "rules")
    reader, writer = rules.stage.connect("reader", persistent=True), rules.stage.connect("writer")
    reader.subscribe("secret/#", qos=1)
    writer.publish("secret/a", b"secret", qos=1)
    reader.receive(Publish)
    reader.close()

    rules.change(ALL_BUT_SECRETS)
    back = rules.stage.connect("reader", persistent=True)

    back.expect_silence()


@pytest.mark.row(42)
@both_versions
def test_messages_of_a_revoked_publisher_are_rejected_after_the_change(
    start: Callable[..., Stage], tmp_path: Path, version: int
) -> None:
    rules = Rules(start, tmp_path / "rules")
    reader, writer = rules.stage.connect("reader", user_name="r"), rules.stage.connect("writer", version=version)
    reader.subscribe("secret/#", qos=1)
    writer.publish("secret/a", b"before", qos=1)

    rules.change("topic read #\n")
    answer = writer.publish("secret/a", b"after", qos=1)
    writer.publish("secret/a", b"after", qos=0)

    assert answer == (0x87 if version == MQTT5 else 0)
    assert reader.receive_publish().payload == b"before"
    reader.expect_silence()


@pytest.mark.row(42)
def test_a_will_is_not_published_after_the_change(start: Callable[..., Stage], tmp_path: Path) -> None:
    rules = Rules(start, tmp_path / "rules")
    reader = rules.stage.connect("reader")
    reader.subscribe("secret/#")
    writer = rules.stage.connect("writer", will=Will("secret/a", b"gone", 0, False))

    rules.change("topic read #\n")
    writer.close()
    rules.stage.connect("writer")  # after the end of the old connection

    reader.expect_silence()


@pytest.mark.row(42)
@pytest.mark.parametrize("is_rechecked", [True, False])
def test_a_retained_message_of_a_revoked_publisher_follows_the_configured_policy(
    start: Callable[..., Stage], tmp_path: Path, is_rechecked: bool
) -> None:
    rules = Rules(start, tmp_path / "rules", retained={"recheck_publisher": is_rechecked})
    rules.stage.connect("writer").publish("secret/a", b"kept", qos=1, retain=True)

    rules.change("topic read #\n")
    reader = rules.stage.connect("reader")
    reader.subscribe("secret/#")

    assert [packet.payload for packet in reader.drain() if isinstance(packet, Publish)] == ([] if is_rechecked else [b"kept"])


@pytest.mark.row(42)
def test_a_retained_message_is_not_delivered_without_read_access(start: Callable[..., Stage], tmp_path: Path) -> None:
    rules = Rules(start, tmp_path / "rules")
    rules.stage.connect("writer").publish("secret/a", b"kept", qos=1, retain=True)
    reader = rules.stage.connect("reader")

    rules.change(ALL_BUT_SECRETS)

    assert reader.request_subscribe("secret/#", "#").reasons == [0x87, 0x87]
    reader.expect_silence()


@pytest.mark.row(42)
def test_a_user_removed_from_the_password_file_is_disconnected_and_the_others_stay(
    start: Callable[..., Stage], tmp_path: Path
) -> None:
    file = tmp_path / "passwords"
    ada, bob = (f"{name}:{hashes.make(b'secret')}\n" for name in ("ada", "bob"))
    file.write_text(ada + bob)
    stage = start(access={"password_file": str(file)})
    node = stage.broker.node
    assert node is not None
    leaving, staying = (stage.connect(user_name=name, password=b"secret") for name in ("ada", "bob"))

    file.write_text(bob)
    stage.broker.run(node.access.reload())

    leaving.expect_disconnect(0x87)
    staying.ping()


@pytest.mark.row(42)
def test_a_ban_closes_only_matching_connections(start: Callable[..., Stage]) -> None:
    stage = start()
    node = stage.broker.node
    assert node is not None
    unwanted, welcome = stage.connect("unwanted"), stage.connect("welcome")

    stage.broker.run(node.access.ban(client_id="unwanted"))

    unwanted.expect_disconnect(0x87)
    welcome.ping()
    again = stage.open()
    again.send_request(client_id="unwanted")
    again.expect_refusal(0x8A)
