"""Eclipse paho: the library that most Python programs use; and what its two dependants here share."""

from __future__ import annotations

import threading
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.support.clients.contract import DEADLINE_S, Message, RealClient, Refused, Setup, Subscription


def connect_properties(setup: Setup) -> Properties | None:
    """The properties of CONNECT; None for MQTT 3."""
    if not setup.is_v5:
        return None
    properties = Properties(PacketTypes.CONNECT)
    if setup.expiry_s:
        properties.SessionExpiryInterval = setup.expiry_s
    return properties


def message_properties(message: Message, kind: int = PacketTypes.PUBLISH) -> Properties:
    """The properties of a PUBLISH or a will."""
    properties = Properties(kind)
    if message.user_properties:
        properties.UserProperty = list(message.user_properties)
    if message.response_topic is not None:
        properties.ResponseTopic = message.response_topic
    if message.correlation_data is not None:
        properties.CorrelationData = message.correlation_data
    if message.content_type is not None:
        properties.ContentType = message.content_type
    if message.expiry_s is not None:
        properties.MessageExpiryInterval = message.expiry_s
    return properties


def subscribe_properties(subscription: Subscription) -> Properties | None:
    """The properties of SUBSCRIBE; None if there are none."""
    if not subscription.identifier:
        return None
    properties = Properties(PacketTypes.SUBSCRIBE)
    properties.SubscriptionIdentifier = subscription.identifier
    return properties


def read_message(topic: str, came: Any) -> Message:
    """What paho and aiomqtt hand out, in our terms."""
    properties = came.properties
    return Message(
        topic=topic,
        payload=came.payload,
        qos=came.qos,
        retain=bool(came.retain),
        user_properties=tuple(tuple(pair) for pair in getattr(properties, "UserProperty", ())),
        response_topic=getattr(properties, "ResponseTopic", None),
        correlation_data=getattr(properties, "CorrelationData", None),
        content_type=getattr(properties, "ContentType", None),
        expiry_s=getattr(properties, "MessageExpiryInterval", None),
        subscription_identifiers=tuple(getattr(properties, "SubscriptionIdentifier", ())),
    )


class PahoClient(RealClient):
    """paho-mqtt with its own thread."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._client = Client(
            CallbackAPIVersion.VERSION2,
            setup.client_id,
            clean_session=None if setup.is_v5 else setup.clean_session,
            protocol=setup.version,  # type: ignore[arg-type]  # paho's enumeration has MQTT's own numbers
            reconnect_on_failure=False,
        )
        if setup.user_name is not None:
            self._client.username_pw_set(setup.user_name, setup.password)
        if setup.will is not None:
            will = setup.will
            properties = message_properties(will, PacketTypes.WILLMESSAGE) if setup.is_v5 else None
            self._client.will_set(will.topic, will.payload, will.qos, will.retain, properties)
        self._answered = threading.Event()
        self._gone = threading.Event()
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_disconnect = lambda *_: self._gone.set()
        self._client.on_message = self._on_message
        self._session_present = False
        self._refusal = ""

    def _on_connect(self, client: Client, data: object, flags: Any, reason: Any, properties: object) -> None:
        self._session_present = flags.session_present
        self._refusal = str(reason) if reason.is_failure else ""
        self._answered.set()

    def _on_subscribe(self, client: Client, data: object, packet_id: int, reasons: list[Any], properties: object) -> None:
        assert not any(reason.is_failure for reason in reasons), reasons
        self._answered.set()

    def _on_message(self, client: Client, data: object, came: MQTTMessage) -> None:
        self.received.put(read_message(came.topic, came))

    def _await_answer(self) -> None:
        assert self._answered.wait(DEADLINE_S), "paho got no answer"
        self._answered.clear()

    def connect(self, *subscriptions: Subscription) -> bool:
        """Connect in paho's thread."""
        setup = self.setup
        if setup.is_v5:
            self._client.connect(
                setup.host, setup.port, clean_start=setup.clean_start, properties=connect_properties(setup)
            )  # fmt: skip
        else:
            self._client.connect(setup.host, setup.port)
        self._client.loop_start()
        self._await_answer()
        if self._refusal:
            raise Refused(self._refusal)
        for each in subscriptions:
            self._client.subscribe(each.topic_filter, each.qos, properties=subscribe_properties(each))
            self._await_answer()
        return self._session_present

    def publish(self, message: Message) -> None:
        """Publish and wait for paho's word that the handshake is over."""
        properties = message_properties(message) if self.setup.is_v5 else None
        sent = self._client.publish(message.topic, message.payload, message.qos, message.retain, properties)
        sent.wait_for_publish(DEADLINE_S)
        assert sent.is_published()

    def disconnect(self) -> None:
        """DISCONNECT, and wait until the socket is closed."""
        self._client.disconnect()
        assert self._gone.wait(DEADLINE_S), "paho did not disconnect"

    def close(self) -> None:
        """End the thread."""
        self._client.disconnect()
        self._client.loop_stop()
