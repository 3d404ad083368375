"""Hooks: the broker calls them at its decisions and events, and survives their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from braidmq.access.contract import Credentials, Granted, Refused, Verdict
from braidmq.base.errors import ConfigError
from braidmq.broker.broker import Broker as Inside
from braidmq.broker.messages.hooks import Client, Hook
from braidmq.lane.path.message import Message
from braidmq.lane.routing.routes import GROUP_WEIGHT
from braidmq.mqtt.packets import Connack, Will
from braidmq.mqtt.properties import NO_PROPERTIES
from braidmq.mqtt.reasons import Reason
from braidmq.testing import Broker
from tests.support.clients.wire import DEADLINE_S, unique
from tests.support.hooks import Recorder
from tests.support.present import present
from tests.support.stage import Stage, wait_until

Start = Callable[..., Stage]

AnyHook = TypeVar("AnyHook", bound=Hook)


def add(stage: Stage, hook: AnyHook) -> AnyHook:
    """Use the hook from now on."""
    stage.look(lambda inside: inside.hooks.add(hook))
    return hook


def remove(stage: Stage, hook: Hook) -> None:
    """Use it no more."""
    stage.look(lambda inside: inside.hooks.remove(hook))


def changed(message: Message, topic: bytes | None = None, payload: bytes | None = None) -> Message:
    """A copy with another topic or payload."""
    return Message(
        message.topic if topic is None else topic,
        message.payload if payload is None else payload,
        message.qos,
        message.retain,
        message.publisher,
    )


class Loud(Hook):
    """Puts payloads below ``shout/`` in capitals and drops the word it does not like."""

    topic_filter = "shout/#"

    def publish(self, message: Message, client: Client | None) -> Message | None:
        """Capitals, or nothing."""
        return None if message.payload == b"psst" else changed(message, payload=message.payload.upper())


class Signed(Hook):
    """Writes each subscriber's name under the messages below ``letters/``, and keeps one subscriber out."""

    topic_filter = "letters/#"

    def deliver(self, message: Message, client_id: str) -> Message | None:
        """A copy for each, none for the excluded."""
        return None if client_id.startswith("excluded") else changed(message, payload=message.payload + client_id.encode())


class Failing(Hook):
    """Raises wherever it is asked or told, below ``fail/``."""

    topic_filter = "fail/#"

    def publish(self, message: Message, client: Client | None) -> Message | None:
        """Raise."""
        raise RuntimeError("publish hook")

    def disconnect(self, client: Client, reason: int) -> None:
        """Raise."""
        raise RuntimeError("disconnect hook")

    def session_created(self, client_id: str) -> None:
        """Raise."""
        raise RuntimeError("event hook")


class Gatekeeper(Hook):
    """Knows one user, refuses another, fails at a third, and leaves the rest to the broker."""

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """By the user name alone."""
        match credentials.user_name:
            case "known":
                return Granted("renamed")
            case "unwanted":
                return Refused(Reason.BAD_USER_NAME_OR_PASSWORD, "not wanted")
            case "trouble":
                raise RuntimeError("authenticate hook")
            case _:
                return None


def test_hooks_are_loaded_by_name_and_can_reject_a_client(start: Start) -> None:
    stage = start(hooks={"load": ["tests.support.hooks:Doorkeeper"]})

    refused = stage.open()
    refused.send_request(client_id="unwelcome")

    refused.expect_refusal(Reason.BANNED)
    stage.connect("welcome").ping()


@pytest.mark.parametrize("name", ["tests.support.hooks:Nobody", "no.such.module:Hook", "tests.support.hooks"])
def test_a_hook_that_cannot_be_loaded_prevents_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match=r"hooks\.load"), Broker(hooks={"load": [name]}):
        pass


def test_an_authenticate_hook_accepts_or_rejects_clients(start: Start) -> None:
    stage = start()
    add(stage, Gatekeeper())

    stage.connect("a", user_name="known", password=b"whatever")
    assert stage.look(lambda inside: present(inside.sessions.get("a")).user_name) == "renamed"

    unwanted = stage.open()
    unwanted.send_request(user_name="unwanted", password=b"x")
    unwanted.expect_refusal(Reason.BAD_USER_NAME_OR_PASSWORD)

    stage.connect("anonymous").ping()


def test_an_authenticate_hook_that_fails_rejects_clients(start: Start) -> None:
    stage = start()
    add(stage, Gatekeeper())

    client = stage.open()
    client.send_request(user_name="trouble", password=b"x")

    client.expect_refusal(Reason.SERVER_UNAVAILABLE)
    stage.connect("anonymous").ping()


def test_a_publish_hook_changes_or_drops_only_messages_of_its_filter(start: Start) -> None:
    stage = start()
    add(stage, Loud())
    receiver, sender = stage.connect(), stage.connect()
    receiver.subscribe("#", qos=1)

    for topic, payload in (("shout/a", b"hear me"), ("shout/b", b"psst"), ("quiet/a", b"hear me")):
        sender.publish(topic, payload, 1)
    sender.publish("shout/c", b"qos 0 as well", 0)

    assert [receiver.receive_publish().payload for _ in range(3)] == [b"HEAR ME", b"hear me", b"QOS 0 AS WELL"]
    assert stage.drops("hook") == 1


def test_the_message_returned_by_a_publish_hook_is_retained(start: Start) -> None:
    stage = start()
    add(stage, Loud())
    stage.connect().publish("shout/a", b"still here", 1, retain=True)

    late = stage.connect()
    late.subscribe("shout/a")

    assert late.receive_publish().payload == b"STILL HERE"


def test_a_publish_hook_sees_wills_and_the_publisher_of_a_message(start: Start) -> None:
    stage = start()
    seen: list[tuple[bytes, str | None]] = []

    class Watcher(Hook):
        def publish(self, message: Message, client: Client | None) -> Message | None:
            seen.append((message.payload, client.client_id if client is not None else None))
            return message

    add(stage, Watcher())
    watcher = stage.connect()
    watcher.subscribe("t", qos=1)
    mortal = stage.connect("mortal", will=Will("t", b"will", 1, False, NO_PROPERTIES))
    mortal.publish("t", b"word", 1)
    mortal.close()

    assert [watcher.receive_publish().payload for _ in range(2)] == [b"word", b"will"]
    assert seen[0] == (b"word", "mortal")
    assert seen[1][0] == b"will"


def test_a_deliver_hook_makes_a_copy_for_each_subscriber(start: Start) -> None:
    stage = start()
    add(stage, Signed())
    ada, bob, excluded, sender = stage.connect("ada"), stage.connect("bob"), stage.connect("excluded1"), stage.connect()
    for client in (ada, bob, excluded):
        client.subscribe("letters/+", "plain", qos=1)

    sender.publish("letters/1", b"dear ", 1)
    sender.publish("plain", b"to all", 1)

    assert [ada.receive_publish().payload for _ in range(2)] == [b"dear ada", b"to all"]
    assert [bob.receive_publish().payload for _ in range(2)] == [b"dear bob", b"to all"]
    assert excluded.receive_publish().payload == b"to all"
    assert stage.drops("hook") == 1


def test_a_deliver_hook_is_called_for_retained_messages(start: Start) -> None:
    stage = start()
    add(stage, Signed())
    stage.connect().publish("letters/1", b"dear ", 1, retain=True)

    ada, excluded = stage.connect("ada"), stage.connect("excluded1")
    ada.subscribe("letters/+", qos=1)
    excluded.subscribe("letters/+", qos=1)

    assert ada.receive_publish().payload == b"dear ada"
    excluded.expect_silence()


def test_hooks_can_be_added_and_removed_while_clients_are_connected(start: Start) -> None:
    stage = start()
    client, sender = stage.connect(), stage.connect()
    client.subscribe("shout/a")
    sender.publish("shout/a", b"before")
    assert client.receive_publish().payload == b"before"

    loud = add(stage, Loud())
    sender.publish("shout/a", b"during")
    assert client.receive_publish().payload == b"DURING"

    remove(stage, loud)
    sender.publish("shout/a", b"after")
    assert client.receive_publish().payload == b"after"


def test_a_topic_without_hooks_uses_the_fast_path(start: Start) -> None:
    stage = start()
    add(stage, Loud())

    flags = stage.look(lambda inside: [present(inside.routes.resolve(topic)).flags for topic in (b"shout/a", b"quiet/a")])

    assert flags[0] != 0
    assert flags[1] == 0


def test_a_failing_hook_drops_only_its_message(start: Start) -> None:
    stage = start()
    client, sender = stage.connect(), stage.connect()
    add(stage, Failing())
    client.subscribe("#", qos=1)

    sender.publish("fail/a", b"lost", 1)
    sender.publish("other", b"heard", 1)
    stage.connect()

    assert client.receive_publish().payload == b"heard"
    client.disconnect()
    assert stage.drops("hook") == 1
    assert len(stage.errors.lines) == 3, "publish, session_created and disconnect are in the log"
    remove(stage, stage.look(lambda inside: inside.hooks.publishes[0]))
    stage.errors.lines.clear()


def test_events_describe_the_life_of_a_session_in_order(start: Start) -> None:
    stage = start()
    recorder = Recorder()
    add(stage, recorder)
    client_id = unique("told")

    stage.connect(client_id, persistent=True).disconnect()
    back = stage.connect(client_id, persistent=True)
    stage.connect(client_id, clean_start=True)
    back.expect_disconnect(Reason.SESSION_TAKEN_OVER)

    told = [recorder.events.get(timeout=DEADLINE_S) for _ in range(9)]
    assert told == [
        ("connect", client_id),
        ("created", client_id),
        ("disconnect", client_id, "0x00"),
        ("connect", client_id),
        ("resumed", client_id),
        ("connect", client_id),
        ("disconnect", client_id, "0x8E"),
        ("ended", client_id),
        ("created", client_id),
    ]


class Careless(Hook):
    """Gives back what is no message, or one that cannot be sent."""

    topic_filter = "careless/#"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def publish(self, message: Message, client: Client | None) -> Message | None:
        """Whatever it was told to."""
        return self.answer  # type: ignore[return-value]


class CarelessDelivery(Hook):
    """The same for each subscriber."""

    topic_filter = "careless/#"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def deliver(self, message: Message, client_id: str) -> Message | None:
        """Whatever it was told to."""
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [Careless, CarelessDelivery])
@pytest.mark.parametrize(
    "answer",
    [
        True,
        b"payload",
        Message(b"careless/a", None, 0, False, ""),  # type: ignore[arg-type]
        Message(b"careless/+", b"", 0, False, ""),
        Message(b"careless/" + b"a" * 65536, b"", 0, False, ""),
        Message(b"careless/a", b"", 3, False, ""),
    ],
    ids=["not a message", "bytes", "no payload", "not a topic", "too long a topic", "not a QoS"],
)
def test_a_hook_result_that_is_not_a_message_is_dropped(
    start: Start, kind: type[Careless] | type[CarelessDelivery], answer: object
) -> None:
    stage = start()
    client, sender = stage.connect(), stage.connect()
    hook = add(stage, kind(answer))
    client.subscribe("#", qos=1)

    sender.publish("careless/a", b"lost", 1)
    sender.publish("other", b"heard", 1)

    assert client.receive_publish().payload == b"heard"
    assert stage.drops("hook") == 1
    assert "returned a message that cannot be sent" in stage.errors.take()
    remove(stage, hook)


def test_deliveries_with_hooks_count_as_work_for_the_publisher(start: Start) -> None:
    stage = start()
    for _ in range(3):
        stage.connect().subscribe("letters/a")
    add(stage, Signed())

    def work_of_one_message(inside: Inside) -> int:
        inside.state.work = 0
        inside.pipeline.publish(Message(b"letters/a", b"", 0, False, ""))
        return inside.state.work

    assert stage.look(work_of_one_message) == 3 * GROUP_WEIGHT, "a hook is asked for each of them"


class Gate(Hook):
    """Lets clients wait until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """Wait, then leave it to the broker."""
        await self.opened.wait()
        return None


def test_the_session_limit_holds_while_many_clients_authenticate(start: Start) -> None:
    stage = start(session={"sessions_max": 2})
    gate = add(stage, Gate())
    clients = [stage.open() for _ in range(4)]
    for client in clients:
        client.send_request()
    wait_until(lambda: stage.look(lambda inside: inside.statistics.authenticating) == 4, "all wait for the hook")

    stage.look(lambda inside: gate.opened.set())

    assert sorted(client.receive(Connack).reason for client in clients) == [0, 0, Reason.QUOTA_EXCEEDED, Reason.QUOTA_EXCEEDED]
