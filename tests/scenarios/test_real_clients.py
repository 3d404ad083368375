"""The clients that people use, against the broker that they will use them with: each library runs the same scenarios.

MQTT.js comes over WebSocket, all others over TCP.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.access import hashes
from braidmq.mqtt.packets import MQTT5, MQTT311
from braidmq.testing import Broker
from tests.support.clients.asyncio_clients import AiomqttClient, GmqttClient
from tests.support.clients.contract import Message, RealClient, Refused, Setup, Subscription
from tests.support.clients.paho_client import PahoClient
from tests.support.clients.processes import MosquittoClient, MqttJsClient
from tests.support.clients.wire import Wires, unique

LIBRARIES: dict[str, tuple[type[RealClient], tuple[str, ...]]] = {
    "paho": (PahoClient, ()),
    "aiomqtt": (AiomqttClient, ()),
    "gmqtt": (GmqttClient, ()),
    "mosquitto": (MosquittoClient, ("mosquitto_pub", "mosquitto_sub")),
    "mqtt.js": (MqttJsClient, ("mqtt.js",)),
}
VERSIONS = {"3.1.1": MQTT311, "5.0": MQTT5}

every_client = pytest.mark.parametrize(
    "kind",
    [
        pytest.param((library, version), id=f"{name}-{label}", marks=[pytest.mark.needs(*needs)] if needs else [])
        for name, (library, needs) in LIBRARIES.items()
        for label, version in VERSIONS.items()
    ],
)
every_client_of_mqtt5 = pytest.mark.parametrize(
    "kind",
    [
        pytest.param((library, MQTT5), id=name, marks=[pytest.mark.needs(*needs)] if needs else [])
        for name, (library, needs) in LIBRARIES.items()
    ],
)


class Clients:
    """Makes clients of one kind for one broker and closes them at the end."""

    def __init__(self, broker: Broker, library: type[RealClient], version: int) -> None:
        self._broker = broker
        self._library = library
        self._version = version
        self._made: list[RealClient] = []

    def __call__(self, client_id: str | None = None, **options: Any) -> RealClient:
        """A client that is not connected yet."""
        broker = self._broker
        setup = Setup(
            host=broker.host,
            port=broker.port,
            ws_port=broker.ports["ws:default"],
            client_id=unique("real") if client_id is None else client_id,
            version=self._version,
            cut=self._cut,
            **options,
        )
        client = self._library(setup)
        self._made.append(client)
        return client

    def _cut(self, client_id: str) -> None:
        def abort() -> None:
            assert self._broker.node is not None
            session = self._broker.node.broker.sessions.get(client_id)
            assert session is not None
            assert session.connection is not None
            session.connection.abort()

        self._broker.call(abort)

    def close(self) -> None:
        """Leave nothing running."""
        for client in self._made:
            client.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Anonymous clients may do everything, and so may ada with her password."""
    passwords = tmp_path_factory.mktemp("access") / "passwords"
    passwords.write_text(f"ada:{hashes.make(b'lovelace')}\n")
    passwords.chmod(0o600)
    listeners = {
        "tcp": {"default": {"bind": "127.0.0.1:0", "allow_anonymous": True}},
        "ws": {"default": {"bind": "127.0.0.1:0", "allow_anonymous": True}},
    }
    with Broker(listeners=listeners, access={"password_file": str(passwords)}) as running:
        yield running


@pytest.fixture
def clients(broker: Broker, kind: tuple[type[RealClient], int]) -> Iterator[Clients]:
    """Clients of the kind under test."""
    made = Clients(broker, *kind)
    yield made
    made.close()


@pytest.fixture
def wires(broker: Broker) -> Iterator[Wires]:
    """Raw connections beside the library under test."""
    opened = Wires(broker.host, broker.port)
    yield opened
    opened.close()


@pytest.fixture
def topic() -> str:
    """A topic of this test alone."""
    return unique("t/")


@pytest.mark.smoke
@pytest.mark.parametrize("qos", [0, 1, 2])
@every_client
def test_messages_arrive_once_in_order_and_unchanged(clients: Clients, topic: str, qos: int) -> None:
    receiver, sender = clients(), clients()
    receiver.connect(Subscription(f"{topic}/+", qos))
    sender.connect()
    sent = [Message(f"{topic}/{i}", f"number {i}: grüß Gott".encode(), qos) for i in range(5)]

    for message in sent:
        sender.publish(message)
    sender.publish(Message(f"{topic}/end", b"end", qos))

    assert [receiver.receive() for _ in range(6)] == [*sent, Message(f"{topic}/end", b"end", qos)]


@every_client
def test_a_large_message_arrives_intact(clients: Clients, topic: str) -> None:
    receiver, sender = clients(), clients()
    receiver.connect(Subscription(topic, 1))
    sender.connect()
    payload = b"0123456789abcdef" * 40_000  # more than the receive buffer of the lane

    sender.publish(Message(topic, payload, 1))

    assert receiver.receive().payload == payload


@every_client
def test_later_subscribers_get_a_retained_message_until_it_is_cleared(clients: Clients, topic: str) -> None:
    sender = clients()
    sender.connect()
    sender.publish(Message(topic, b"old", 1, retain=True))
    sender.publish(Message(topic, b"new", 1, retain=True))

    greeted = clients()
    greeted.connect(Subscription(topic, 1))
    assert greeted.receive() == Message(topic, b"new", 1, retain=True)

    sender.publish(Message(topic, b"", 1, retain=True))
    late = clients()
    late.connect(Subscription(topic, 1))
    sender.publish(Message(topic, b"live", 1))
    assert late.receive() == Message(topic, b"live", 1), "the cleared message is gone, the live one has no retain flag"


@every_client
def test_the_will_of_a_lost_client_is_published(clients: Clients, wires: Wires, topic: str) -> None:
    watcher = wires()
    watcher.subscribe(topic, qos=1)
    mortal = clients(will=Message(topic, b"gone", 1))
    mortal.connect()

    mortal.vanish()

    heard = watcher.receive_publish()
    assert (heard.topic, heard.payload, heard.qos, heard.retain) == (topic, b"gone", 1, False)


@every_client
def test_disconnect_discards_the_will_unless_it_requests_it(clients: Clients, wires: Wires, topic: str) -> None:
    watcher = wires()
    presence = f"$SYS/brokers/+/clients/{topic[2:]}/disconnected"
    watcher.subscribe(topic, presence, qos=1)
    polite = clients(topic[2:], will=Message(topic, b"gone", 1))
    polite.connect()

    polite.disconnect()

    # The end is told at once, a will when it is on disk; what comes after both would be a will that nobody asked for.
    assert watcher.receive_publish().topic.endswith("/disconnected")
    if polite.wants_will_on_goodbye:
        assert watcher.receive_publish().payload == b"gone"
    sender = wires()
    sender.publish(topic, b"after", 1)
    assert watcher.receive_publish().payload == b"after"
    watcher.expect_silence()


@pytest.mark.smoke
@every_client
def test_a_session_survives_its_connection_and_queues_messages(clients: Clients, topic: str) -> None:
    client_id = unique("durable")
    first = clients(client_id, clean_start=False, expiry_s=60)
    assert first.connect(Subscription(f"{topic}/+", 2)) in (False, None)
    first.disconnect()
    sender = clients()
    sender.connect()
    sent = [Message(f"{topic}/{i}", f"kept {i}".encode(), qos) for i, qos in enumerate([1, 2, 1, 2])]
    for message in sent:
        sender.publish(message)

    back = clients(client_id, clean_start=False, expiry_s=60)

    assert back.connect() in (True, None)
    came = [back.receive() for _ in sent]
    for qos in (1, 2):  # some libraries show a QoS 2 message at PUBREL: only within one QoS is there an order
        assert [message for message in came if message.qos == qos] == [message for message in sent if message.qos == qos]


@every_client
def test_a_clean_start_discards_the_session(clients: Clients, topic: str) -> None:
    client_id = unique("durable")
    first = clients(client_id, clean_start=False, expiry_s=60)
    first.connect(Subscription(topic, 1))
    first.disconnect()
    sender = clients()
    sender.connect()
    sender.publish(Message(topic, b"for nobody", 1))

    anew = clients(client_id, clean_start=True)
    assert anew.connect(Subscription(f"{topic}/other", 1)) in (False, None)

    sender.publish(Message(topic, b"for nobody either", 1))
    sender.publish(Message(f"{topic}/other", b"heard", 1))
    assert anew.receive().payload == b"heard"


@every_client
def test_members_of_a_shared_group_divide_the_messages(clients: Clients, topic: str) -> None:
    members = [clients(), clients()]
    for member in members:
        member.connect(Subscription(f"$share/workers/{topic}/+", 1))
    sender = clients()
    sender.connect()
    sent = {Message(f"{topic}/{i}", str(i).encode(), 1) for i in range(10)}

    for message in sent:
        sender.publish(message)

    shares = [[member.receive() for _ in range(5)] for member in members]  # the default strategy takes turns
    assert set(shares[0]) | set(shares[1]) == sent


@every_client
def test_a_correct_password_is_accepted_and_a_wrong_one_is_rejected(clients: Clients, topic: str) -> None:
    ada = clients(user_name="ada", password="lovelace")
    ada.connect(Subscription(topic, 1))
    ada.publish(Message(topic, b"I am in", 1))
    assert ada.receive().payload == b"I am in"

    stranger = clients(user_name="ada", password="byron")
    with pytest.raises(Refused):
        stranger.connect()


@every_client_of_mqtt5
def test_properties_pass_from_publisher_to_subscriber(clients: Clients, topic: str) -> None:
    receiver, sender = clients(), clients()
    receiver.connect(Subscription(topic, 1, identifier=77))
    sender.connect()

    sender.publish(
        Message(
            topic,
            b"question",
            1,
            user_properties=(("unit", "°C"), ("tag", "a"), ("tag", "b")),
            response_topic="answers/here",
            correlation_data=b"4711",
            content_type="text/plain",
            expiry_s=600,
        )
    )

    came = receiver.receive()
    assert came.user_properties == (("unit", "°C"), ("tag", "a"), ("tag", "b"))
    assert came.response_topic == "answers/here"
    assert came.correlation_data == b"4711"
    assert came.content_type == "text/plain"
    assert came.expiry_s is not None
    assert 590 < came.expiry_s <= 600
    assert came.subscription_identifiers == (77,)


@every_client_of_mqtt5
def test_an_expired_message_is_not_delivered_on_reconnect(clients: Clients, wires: Wires, topic: str) -> None:
    client_id = unique("durable")
    first = clients(client_id, clean_start=False, expiry_s=60)
    first.connect(Subscription(topic, 1))
    first.disconnect()
    sender = wires()
    sender.publish(topic, b"milk", 1, message_expiry_interval=1)
    sender.publish(topic, b"honey", 1)
    # Another message with the same life time, given back by the broker when it is over: no clock of our own.
    clock = wires()
    clock.subscribe(f"{topic}/clock", qos=1)
    sender.publish(f"$delayed/1/{topic}/clock", b"a second has passed", 1)
    clock.receive_publish()

    back = clients(client_id, clean_start=False, expiry_s=60)
    back.connect()

    assert back.receive().payload == b"honey"
