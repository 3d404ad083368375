"""Clients that are programs: mosquitto_pub and mosquitto_sub, and MQTT.js over WebSocket in node."""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tests.support.clients.contract import DEADLINE_S, Message, RealClient, Refused, Setup, Subscription

SCRIPT = Path(__file__).with_name("mqttjs_client.js")


class Program:
    """A running program whose output is handed on line by line."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self.lines: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def write(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")

    def terminate(self) -> None:
        """Ask it to end, and wait until it has."""
        self._process.terminate()
        self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        """End it without its knowing; may be called again."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class MosquittoClient(RealClient):
    """One mosquitto_sub while connected, and a mosquitto_pub for each message. It does not tell of Session Present."""

    _program: Program | None = None

    @property
    def wants_will_on_goodbye(self) -> bool:  # type: ignore[override]
        """mosquitto_sub says goodbye when it is told to end, which in MQTT 5 it takes for a reason to have its will published."""
        return self.setup.is_v5

    def connect(self, *subscriptions: Subscription) -> None:
        """Start mosquitto_sub and read what it says about itself until it is subscribed."""
        setup = self.setup
        wanted = subscriptions or (Subscription(f"idle/{setup.client_id}"),)
        command = [
            *("stdbuf", "-oL", "mosquitto_sub", "-d", *self._address(), "-i", setup.client_id, "-q", str(wanted[0].qos)),
            *("-F", "%j"),
        ]  # fmt: skip
        for each in wanted:
            command += ["-t", each.topic_filter]
            if each.identifier:
                command += ["-D", "subscribe", "subscription-identifier", str(each.identifier)]
        if setup.expiry_s or not setup.clean_start:
            command += ["-c"]
        if setup.expiry_s and setup.is_v5:
            command += ["-x", str(setup.expiry_s)]
        if setup.will is not None:
            will = setup.will
            command += ["--will-topic", will.topic, "--will-payload", will.payload.decode(), "--will-qos", str(will.qos)]
            command += ["--will-retain"] if will.retain else []
        self._program = Program(*command)
        said: list[str] = []
        while True:
            try:
                line = self._program.lines.get(timeout=DEADLINE_S)
            except Empty:
                raise TimeoutError(f"mosquitto_sub did not subscribe: {said}") from None
            if line is None or line.startswith("Connection error"):
                raise Refused("; ".join([*said, line or "it ended"]))
            said.append(line)
            if line.startswith("Subscribed"):
                break
            self._take(line)
        threading.Thread(target=self._pass_on, args=(self._program,), daemon=True).start()

    def _address(self) -> list[str]:
        setup = self.setup
        address = ["-h", setup.host, "-p", str(setup.port), "-V", "mqttv5" if setup.is_v5 else "mqttv311"]
        if setup.user_name is not None:
            address += ["-u", setup.user_name, "-P", setup.password or ""]
        return address

    def _pass_on(self, program: Program) -> None:
        while (line := program.lines.get()) is not None:
            self._take(line)

    def _take(self, line: str) -> None:
        if not line.startswith("{"):
            return
        # A JSON object with the same key twice is how mosquitto_sub writes a repeated user property.
        came = dict(json.loads(line, object_pairs_hook=list))
        properties = dict(came.get("properties", ()))
        correlation = properties.get("correlation-data")
        identifier = properties.get("subscription-identifier")
        self.received.put(
            Message(
                topic=came["topic"],
                payload=(came["payload"] or "").encode(),  # null: empty
                qos=came["qos"],
                retain=bool(came["retain"]),
                user_properties=tuple(tuple(pair) for pair in properties.get("user-properties", ())),
                response_topic=properties.get("response-topic"),
                correlation_data=None if correlation is None else correlation.encode(),
                content_type=properties.get("content-type"),
                expiry_s=properties.get("message-expiry-interval"),
                subscription_identifiers=() if identifier is None else (identifier,),
            )
        )

    def publish(self, message: Message) -> None:
        """Run mosquitto_pub to its end."""
        command = ["mosquitto_pub", *self._address(), "-t", message.topic, "-q", str(message.qos)]
        command += ["-r"] if message.retain else []
        command += ["-s"] if message.payload else ["-n"]
        for name, value in message.user_properties:
            command += ["-D", "publish", "user-property", name, value]
        for property_name, text in (
            ("response-topic", message.response_topic),
            ("correlation-data", message.correlation_data and message.correlation_data.decode()),
            ("content-type", message.content_type),
            ("message-expiry-interval", message.expiry_s),
        ):
            if text is not None:
                command += ["-D", "publish", property_name, str(text)]
        done = subprocess.run(command, input=message.payload, capture_output=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr

    def disconnect(self) -> None:
        """SIGTERM, upon which mosquitto_sub sends DISCONNECT."""
        assert self._program is not None
        self._program.terminate()

    def vanish(self) -> None:
        """SIGKILL."""
        assert self._program is not None
        self._program.kill()

    def close(self) -> None:
        """End the program."""
        if self._program is not None:
            self._program.kill()


class MqttJsClient(RealClient):
    """MQTT.js over WebSocket; the script beside this file does what single lines of JSON tell it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._program = Program("node", str(SCRIPT))
        self._answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._numbers = itertools.count(1)
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        while (line := self._program.lines.get()) is not None:
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                said = {"error": line}
            if said.get("event") == "message":
                self.received.put(_read(said))
            else:
                self._answers.put(said)
        self._answers.put({"error": "node ended"})

    def _tell(self, command: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._program.write(json.dumps({"id": number, "command": command, **arguments}))
        answer = self._answers.get(timeout=DEADLINE_S)
        if "error" in answer:
            raise Refused(answer["error"]) if command == "connect" else AssertionError(answer["error"])
        assert answer["id"] == number, answer
        return answer

    def connect(self, *subscriptions: Subscription) -> bool:
        """Connect to the path /mqtt and subscribe."""
        setup = self.setup
        answer = self._tell(
            "connect",
            url=f"ws://{setup.host}:{setup.ws_port}/mqtt",
            version=setup.version,
            client_id=setup.client_id,
            clean=setup.clean_start if setup.is_v5 else setup.clean_session,
            expiry_s=setup.expiry_s if setup.is_v5 else 0,
            user_name=setup.user_name,
            password=setup.password,
            will=_written(setup.will) if setup.will is not None else None,
        )
        for each in subscriptions:
            self._tell("subscribe", filter=each.topic_filter, qos=each.qos, identifier=each.identifier)
        return bool(answer["session_present"])

    def publish(self, message: Message) -> None:
        """Publish and wait for the callback."""
        self._tell("publish", message=_written(message))

    def disconnect(self) -> None:
        """DISCONNECT and the WebSocket's own farewell."""
        self._tell("disconnect")

    def vanish(self) -> None:
        """Kill node."""
        self._program.kill()

    def close(self) -> None:
        """End node."""
        self._program.kill()


def _written(message: Message) -> dict[str, Any]:
    properties = {
        "userProperties": _grouped(message.user_properties) or None,
        "responseTopic": message.response_topic,
        "contentType": message.content_type,
        "messageExpiryInterval": message.expiry_s,
    }
    correlation = message.correlation_data
    return {
        "topic": message.topic,
        "payload": base64.b64encode(message.payload).decode(),
        "qos": message.qos,
        "retain": message.retain,
        "properties": {name: value for name, value in properties.items() if value is not None},
        "correlation": None if correlation is None else base64.b64encode(correlation).decode(),
    }


def _grouped(pairs: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """MQTT.js keeps user properties as an object of lists."""
    grouped: dict[str, list[str]] = {}
    for name, value in pairs:
        grouped.setdefault(name, []).append(value)
    return grouped


def _read(said: dict[str, Any]) -> Message:
    properties = said["properties"]
    user: dict[str, str | list[str]] = properties.get("userProperties", {})
    pairs = [(name, value) for name, values in user.items() for value in (values if isinstance(values, list) else [values])]
    identifiers = properties.get("subscriptionIdentifier", [])
    correlation = said["correlation"]
    return Message(
        topic=said["topic"],
        payload=base64.b64decode(said["payload"]),
        qos=said["qos"],
        retain=said["retain"],
        user_properties=tuple(pairs),
        response_topic=properties.get("responseTopic"),
        correlation_data=None if correlation is None else base64.b64decode(correlation),
        content_type=properties.get("contentType"),
        expiry_s=properties.get("messageExpiryInterval"),
        subscription_identifiers=tuple(identifiers if isinstance(identifiers, list) else [identifiers]),
    )
