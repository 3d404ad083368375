"""aiomqtt and gmqtt, each in an event loop of its own in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import aiomqtt
import gmqtt
from gmqtt.mqtt.handler import MQTTConnectError
from gmqtt.storage import PersistentStorage
from paho.mqtt.packettypes import PacketTypes

from tests.support.clients.contract import DEADLINE_S, Message, RealClient, Refused, Setup, Subscription
from tests.support.clients.paho_client import connect_properties, message_properties, read_message, subscribe_properties

Result = TypeVar("Result")


class LoopClient(RealClient):
    """A client whose library wants a running event loop."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _clean_up(self) -> None:
        """Close the library's client in any state."""
        raise NotImplementedError

    def close(self) -> None:
        """End the client, its tasks and the loop."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        with suppress(Exception):
            await self._clean_up()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class AiomqttClient(LoopClient):
    """aiomqtt. It does not tell whether the session was present."""

    _client: aiomqtt.Client | None = None

    def connect(self, *subscriptions: Subscription) -> None:
        """Enter aiomqtt's context; messages go to the queue by a task."""
        self._run(self._connect(subscriptions))

    async def _connect(self, subscriptions: tuple[Subscription, ...]) -> None:
        setup = self.setup
        will = None
        if setup.will is not None:
            properties = message_properties(setup.will, PacketTypes.WILLMESSAGE) if setup.is_v5 else None
            will = aiomqtt.Will(setup.will.topic, setup.will.payload, setup.will.qos, setup.will.retain, properties)
        client = aiomqtt.Client(
            setup.host,
            setup.port,
            identifier=setup.client_id,
            protocol=aiomqtt.ProtocolVersion(setup.version),
            clean_session=None if setup.is_v5 else setup.clean_session,
            clean_start=setup.clean_start if setup.is_v5 else 3,  # 3: paho's word for "not given"
            properties=connect_properties(setup),
            will=will,
            username=setup.user_name,
            password=setup.password,
        )
        try:
            await client.__aenter__()
        except aiomqtt.MqttError as error:
            raise Refused(str(error)) from error
        self._client = client
        self._reader = asyncio.create_task(self._read(client))
        for each in subscriptions:
            await client.subscribe(each.topic_filter, each.qos, properties=subscribe_properties(each))

    async def _read(self, client: aiomqtt.Client) -> None:
        with suppress(aiomqtt.MqttError):  # how aiomqtt tells that the connection is over
            async for came in client.messages:
                self.received.put(read_message(came.topic.value, came))

    def publish(self, message: Message) -> None:
        """Publish; aiomqtt waits for the handshake itself."""
        assert self._client is not None
        properties = message_properties(message) if self.setup.is_v5 else None
        self._run(
            self._client.publish(message.topic, message.payload, message.qos, message.retain, properties=properties)
        )  # fmt: skip

    def disconnect(self) -> None:
        """Leave aiomqtt's context."""
        self._run(self._clean_up())

    async def _clean_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


class GmqttClient(LoopClient):
    """gmqtt: an implementation of its own, made for MQTT 5."""

    _client: gmqtt.Client | None = None

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._unacknowledged = PersistentStorage()

    def connect(self, *subscriptions: Subscription) -> bool:
        """Connect without gmqtt's own reconnecting."""
        return self._run(self._connect(subscriptions))

    async def _connect(self, subscriptions: tuple[Subscription, ...]) -> bool:
        setup = self.setup
        properties: dict[str, Any] = {"session_expiry_interval": setup.expiry_s} if setup.is_v5 and setup.expiry_s else {}
        will = setup.will
        will_message = None
        if will is not None:
            will_message = gmqtt.Message(will.topic, will.payload, will.qos, will.retain, **_gmqtt_properties(will))
        clean = setup.clean_start if setup.is_v5 else setup.clean_session
        self._client = client = gmqtt.Client(
            setup.client_id, clean_session=clean, will_message=will_message, persistent_storage=self._unacknowledged, **properties
        )
        client.set_config({"reconnect_retries": 0, "reconnect_delay": 0})
        if setup.user_name is not None:
            client.set_auth_credentials(setup.user_name, setup.password)
        connected: asyncio.Future[bool] = self._loop.create_future()

        def on_connect(_: object, flags: int, reason: object, properties: object) -> None:
            if not connected.done():
                connected.set_result(bool(flags))

        client.on_connect = on_connect
        client.on_message = self._on_message
        try:
            await client.connect(setup.host, setup.port, version=setup.version)
        except MQTTConnectError as error:
            raise Refused(str(error)) from error
        present = await connected
        for each in subscriptions:
            acknowledged: asyncio.Future[tuple[int, ...]] = self._loop.create_future()
            client.on_subscribe = lambda _, packet_id, reasons, properties, a=acknowledged: a.set_result(reasons)
            client.subscribe(
                gmqtt.Subscription(each.topic_filter, each.qos, subscription_identifier=each.identifier or None)
            )  # fmt: skip
            reasons = await acknowledged
            assert all(reason < 0x80 for reason in reasons), reasons
        return present

    async def _on_message(self, client: object, topic: str, payload: bytes, qos: int, properties: dict[str, Any]) -> int:
        self.received.put(
            Message(
                topic=topic,
                payload=bytes(payload),
                qos=qos,
                retain=bool(properties.get("retain")),
                user_properties=tuple(tuple(pair) for pair in properties.get("user_property", ())),
                response_topic=_first(properties, "response_topic"),
                correlation_data=_first(properties, "correlation_data"),
                content_type=_first(properties, "content_type"),
                expiry_s=_first(properties, "message_expiry_interval"),
                subscription_identifiers=tuple(properties.get("subscription_identifier", ())),
            )
        )
        return 0

    def publish(self, message: Message) -> None:
        """Publish and wait until gmqtt's store of what is not acknowledged is empty."""
        self._run(self._publish(message))

    async def _publish(self, message: Message) -> None:
        client = self._client
        assert client is not None
        properties = _gmqtt_properties(message) if self.setup.is_v5 else {}
        client.publish(message.topic, message.payload, message.qos, message.retain, **properties)
        await self._unacknowledged.wait_empty()

    def disconnect(self) -> None:
        """DISCONNECT and close."""
        self._run(self._clean_up())

    async def _clean_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.disconnect()


def _first(properties: dict[str, Any], name: str) -> Any:
    found = properties.get(name)
    return found[0] if found else None


def _gmqtt_properties(message: Message) -> dict[str, Any]:
    properties = {
        "user_property": list(message.user_properties) or None,
        "response_topic": message.response_topic,
        "correlation_data": message.correlation_data,
        "content_type": message.content_type,
        "message_expiry_interval": message.expiry_s,
    }
    return {name: value for name, value in properties.items() if value is not None}
