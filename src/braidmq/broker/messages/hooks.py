"""Hooks: the operator's Python code, called at defined points of the broker.

A hook is an object with any of the methods of ``Hook``. Publish and deliver hooks name a topic filter: whether a message
concerns one is decided when its topic's route is built, so a broker without hooks, or a topic without them, pays nothing. A
hook that raises, or returns something that is not a message, rejects (connect, authenticate, publish, deliver) or is logged and
skipped (the events): it never takes the broker down.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from braidmq.access.contract import Credentials, Verdict
from braidmq.access.guarded import Breaker, is_verdict
from braidmq.base.errors import ConfigError
from braidmq.lane.path.message import Message
from braidmq.lane.path.parser import topic_error
from braidmq.mqtt.packet_types import PacketType
from braidmq.mqtt.reasons import REASONS_OF, Reason
from braidmq.mqtt.topics import matches

log = logging.getLogger("braidmq.hooks")

_REFUSALS = REASONS_OF[PacketType.CONNACK] - {0}
# sys.exit() in a hook must not end the node, nor a stray cancellation a callback of the loop.
_FAULTS = (Exception, SystemExit, asyncio.CancelledError)
_EXPIRY_BYTES = 4
_LEVELS_MOST = 65536  # the routes decide whether a topic has too many


class Client(msgspec.Struct, frozen=True):
    """A client as hooks see it."""

    client_id: str
    user_name: str | None
    peer_host: str
    listener: str
    version: int


class Hook:
    """Base for hooks; override what you need. ``publish`` and ``deliver`` see the messages that ``topic_filter`` matches."""

    topic_filter = "#"

    def connect(self, client: Client) -> int:
        """Before CONNACK: 0 accepts the client, another reason code rejects it."""
        return 0

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """Decide instead of the configured authenticator; None leaves the decision to it."""
        return None

    def publish(self, message: Message, client: Client | None) -> Message | None:
        """The message to route in place of this one; None drops it. ``client`` is None for the broker's own messages."""
        return message

    def deliver(self, message: Message, client_id: str) -> Message | None:
        """The message that this subscriber gets; None withholds it."""
        return message

    def disconnect(self, client: Client, reason: int) -> None:
        """A connection has ended."""

    def client_online(self, client: Client, node: str, version: list[int]) -> None:
        """A client has connected to a node; called on the home of its client id."""

    def client_offline(self, client: Client, node: str, version: list[int], reason: int) -> None:
        """A client's connection to a node has ended; called on the home of its client id."""

    def session_created(self, client_id: str) -> None:
        """A session began."""

    def session_resumed(self, client_id: str) -> None:
        """A client came back to its session."""

    def session_ended(self, client_id: str) -> None:
        """A session is over and its state is gone."""


class Hooks:
    """The hooks in use, by what they override."""

    def __init__(self, authenticate_timeout_s: float = 10.0) -> None:
        self._authenticate_timeout_s = authenticate_timeout_s
        self._guards: dict[Hook, Breaker] = {}
        self._all: list[Hook] = []
        self.connects: list[Hook] = []
        self.authenticates: list[Hook] = []
        self.publishes: list[Hook] = []
        self.delivers: list[Hook] = []
        self._followers: list[Hook] = []  # of clients that connect and disconnect
        self.failures = 0  # calls that raised or returned an invalid value, except ``authenticate``
        self.on_change: Callable[[], None] = lambda: None

    def add(self, hook: Hook) -> None:
        """Use the hook from now on."""
        self._all.append(hook)
        self._guards[hook] = Breaker(self._authenticate_timeout_s)
        for name, users in self._lists():
            if _overrides(hook, name):
                users.append(hook)
        self.on_change()

    def remove(self, hook: Hook) -> None:
        """Stop using the hook."""
        self._all.remove(hook)
        del self._guards[hook]
        for _, users in self._lists():
            if hook in users:
                users.remove(hook)
        self.on_change()

    def _lists(self) -> tuple[tuple[str, list[Hook]], ...]:
        return (
            ("connect", self.connects),
            ("authenticate", self.authenticates),
            ("publish", self.publishes),
            ("deliver", self.delivers),
            ("client_online", self._followers),
            ("client_offline", self._followers),
        )

    @property
    def follows_presence(self) -> bool:
        """Whether a hook wants to hear of clients that connect and disconnect, on whichever node."""
        return bool(self._followers)

    def concerns(self, users: list[Hook], topic: str) -> bool:
        """Whether one of these hooks wants to see messages of the topic."""
        return any(matches(hook.topic_filter, topic) for hook in users)

    def connect(self, client: Client) -> int:
        """0, or the first refusal."""
        for hook in self.connects:
            try:
                reason: object = hook.connect(client)
            except _FAULTS:
                self._fail("connect hook %r failed; the client is rejected", hook, is_raised=True)
                return int(Reason.UNSPECIFIED_ERROR)
            if not isinstance(reason, int):
                self._fail("connect hook %r returned %r, which is not a reason code; the client is rejected", hook, reason)
                return int(Reason.UNSPECIFIED_ERROR)
            if reason:
                return int(reason) if reason in _REFUSALS else int(Reason.UNSPECIFIED_ERROR)
        return 0

    async def authenticate(self, credentials: Credentials) -> Verdict | None:
        """The first verdict of a hook; None if all leave it to the authenticator."""
        for hook in self.authenticates:
            # The service behind it may be slow, down or broken: then the client is rejected.
            verdict = await self._guards[hook].ask(
                lambda hook=hook: hook.authenticate(credentials),  # type: ignore[misc]
                lambda answer: answer is None or is_verdict(answer),
            )
            if verdict is not None:
                return verdict
        return None

    def publish(self, message: Message, client: Client | None) -> Message | None:
        """Pass a message through the hooks; None if one drops it."""
        return self._pass(self.publishes, "publish", message, client)

    def deliver(self, message: Message, client_id: str) -> Message | None:
        """Pass a message for one subscriber through the hooks; None if one withholds it."""
        return self._pass(self.delivers, "deliver", message, client_id)

    def _pass(self, users: list[Hook], name: str, message: Message, who: Client | str | None) -> Message | None:
        topic = message.topic.decode()
        for hook in users:
            if not matches(hook.topic_filter, topic):
                continue
            try:
                changed: Message | None = getattr(hook, name)(message, who)
            except _FAULTS:
                self._fail("%s hook %r failed; the message is dropped", name, hook, is_raised=True)
                return None
            if changed is None:
                return None
            if changed is not message and not _is_sound(changed):
                self._fail("%s hook %r returned a message that cannot be sent; the message is dropped", name, hook)
                return None
            message = changed
        return message

    def tell(self, event: str, *arguments: Any) -> None:
        """Call an event method of every hook that has it."""
        for hook in self._all:
            try:
                getattr(hook, event)(*arguments)
            except _FAULTS:
                self._fail("%s hook %r failed", event, hook, is_raised=True)

    def _fail(self, line: str, *arguments: object, is_raised: bool = False) -> None:
        self.failures += 1
        log.error(line, *arguments, exc_info=is_raised)


def _is_sound(message: object) -> bool:
    """Whether a hook's message is valid; the compiled lane does not check messages."""
    if not isinstance(message, Message) or not isinstance(message.publisher, str):
        return False
    if not all(isinstance(part, bytes) for part in (message.topic, message.payload, message.properties)):
        return False
    is_inside = message.expiry_offset + _EXPIRY_BYTES <= len(message.properties) or message.expiry_offset < 0
    return 0 <= message.qos <= 2 and is_inside and topic_error(message.topic, _LEVELS_MOST) == 0


def _overrides(hook: Hook, name: str) -> bool:
    return getattr(type(hook), name, None) is not getattr(Hook, name)


def load(names: tuple[str, ...], authenticate_timeout_s: float) -> Hooks:
    """Hooks named as ``package.module:Class`` in the configuration, made without arguments."""
    hooks = Hooks(authenticate_timeout_s)
    for name in names:
        kind = find(name)
        try:
            hook = kind()
        except Exception as error:
            hint = "a hook is created without arguments and must not raise"
            raise ConfigError("hooks.load", f"{name!r} cannot be created ({_in_words(error)})", hint) from error
        hooks.add(hook)
    return hooks


def find(name: str) -> type[Hook]:
    """The class of a hook by its name in the configuration; imports its module. Raises ConfigError."""
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:
        hint = "write it as package.module:Class"
        raise ConfigError("hooks.load", f"{name!r} cannot be loaded ({_in_words(error)})", hint) from error
    if not isinstance(found, type) or not issubclass(found, Hook):
        raise ConfigError("hooks.load", f"{name!r} is not a hook", "use a subclass of braidmq.hooks.Hook")
    return found


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
