"""What a durable session promises, as a model beside a real broker and log.

- A message that was acknowledged while a subscription of QoS 1 or 2 was there comes, as long as that subscription stays.
- QoS 2 on both sides means exactly once.
- What was acknowledged before SUBSCRIBE does not come, but as a retained message (S3).
- First deliveries are in order for each publisher, topic and QoS (``delivery_order``).
- After every crash: a record at or below the position on disk is answered by the client or in flight on disk.

Packets that were written when the network or the broker failed may have reached the client or not. What is checked at every
packet is in ``strict_receiver``.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from braidmq.mqtt.packets import Disconnect, Packet, Publish, Suback, Subscribe, SubscribeOption, Unsuback, Unsubscribe
from braidmq.mqtt.reasons import Reason
from braidmq.mqtt.topics import matches
from tests.support.simulator.delivery_order import DeliveryOrder
from tests.support.simulator.model_publisher import ModelPublisher
from tests.support.simulator.peer import Peer
from tests.support.simulator.strict_receiver import StrictReceiver
from tests.support.simulator.world import World

NOTHING, TURN, SYNC, SETTLE, TICK = range(5)  # how far the world goes on after an action


class Connects(Struct, frozen=True):
    """The subscriber connects, if it is not there."""

    clean: bool
    window: int


class Leaves(Struct, frozen=True):
    """The subscriber goes: goodbye, cut or taken over. What was written meanwhile is lost. With a window it is back at once."""

    end: str
    progress: int
    back_with: int


class Subscribes(Struct, frozen=True):
    """The subscriber adds or changes a subscription; QoS -1: it removes one."""

    topic_filter: str
    qos: int
    progress: int


class Answers(Struct, frozen=True):
    """The subscriber answers what it owes at these places, in any order: the broker must bear it."""

    places: tuple[int, ...]
    progress: int


class Publishes(Struct, frozen=True):
    """One of the publishers sends messages."""

    which: int
    topic: str
    qos: int
    retain: bool
    count: int
    progress: int


class LosesPublisher(Struct, frozen=True):
    """A publisher is cut off and comes back."""

    which: int
    progress: int


class GoesOn(Struct, frozen=True):
    """No client does anything; a new generation of the log begins if a layout is named."""

    layout: str
    progress: int


class Ends(Struct, frozen=True):
    """The node ends: process died, lost power or stopped. Another starts on what it has left, or was handed its sessions."""

    end: str
    progress: int
    arrives: bool
    back_with: int


class FillsDisk(Struct, frozen=True):
    """Nothing can be stored until a client connects or the node ends."""

    progress: int


Action = FillsDisk | Connects | Leaves | Subscribes | Answers | Publishes | LosesPublisher | GoesOn | Ends


class Message(Struct):
    """A message, and the subscriptions that may or must bring it."""

    publisher: str
    topic: str
    qos: int
    retain: bool
    possible: set[str]  # filters that were there, or asked for, before it was acknowledged
    owing: set[str]  # filters that were there when it was sent, with QoS 1 or 2, and are there still
    is_acknowledged: bool = False
    is_refused: bool = False


class DurableSession:
    """One subscriber with a durable session, two publishers, one of them with a durable session of its own."""

    def __init__(self, history: dict[str, Any], work_max: int | None = None) -> None:
        self.world = World(history=history, work_max=work_max)
        self.peer: Peer | None = None
        self.left_peer: Peer | None = None  # the last connection, if it ended before the client had read everything
        self.client = StrictReceiver(self.on_delivery)
        self.publishers = [
            ModelPublisher("p durable", is_durable=True, on_acknowledged=self.on_acknowledged, on_refused=self.on_refused),
            ModelPublisher("p", is_durable=False, on_acknowledged=self.on_acknowledged, on_refused=self.on_refused),
        ]
        self.messages: dict[int, Message] = {}
        self.subscriptions: dict[str, int] = {}  # that the client was told it has, with their QoS
        self.possible: set[str] = set()  # filters that the broker may have
        self.asked: dict[int, tuple[str, int]] = {}  # packet id: the filter and QoS of a SUBSCRIBE, or QoS -1: UNSUBSCRIBE
        self.doubtful: set[str] = set()  # filters that the client has asked for, or to be rid of, and had no answer
        self.packet_id = 0
        self.has_session = False
        self.has_crashed = False
        self.was_full = False  # in this life of the broker
        self.delivered_once: set[int] = set()  # with QoS 2
        self.order = DeliveryOrder(self.is_sent_twice, self.is_refused_unread)

    def do(self, action: Action) -> None:
        """Perform the action if its client is there, and check everything that follows."""
        match action:
            case Connects() if self.peer is None:
                self.connect(action.clean, action.window)
            case Leaves() if self.peer is not None:
                self.leave(action)
            case Subscribes() if self.peer is not None and not self.asked:
                self.subscribe(self.peer, action)
            case Answers() if self.peer is not None:
                self.answer(self.peer, action)
            case Publishes():
                self.publish(action)
            case LosesPublisher():
                self.lose_a_publisher(action)
            case FillsDisk():
                self.was_full = True
                self.world.fill_disk()
                self.advance_and_absorb(action.progress)
            case GoesOn():
                if action.layout and not self.world.disk.is_full:
                    self.world.log.add_generation(action.layout)
                self.advance_and_absorb(action.progress)
            case Ends():
                self.end_a_life(action)

    # What comes

    def on_acknowledged(self, number: int) -> None:
        self.messages[number].is_acknowledged = True

    def on_refused(self, number: int) -> None:
        """It is not stored, unless an earlier copy of it is."""
        assert self.was_full, f"{number} was refused without a reason"
        if not self.is_sent_twice(number):
            message = self.messages[number]
            message.is_refused = True
            message.possible.clear()
            message.owing.clear()

    def on_delivery(self, number: int, packet: Publish) -> None:
        message = self.messages[number]
        assert packet.topic == message.topic
        assert packet.qos <= message.qos
        if packet.retain:
            assert message.retain
            assert not message.is_refused
            return
        assert message.possible, f"{number} was published before any subscription that it matches"
        assert number not in self.delivered_once, f"{number} came again after it had come with QoS 2"
        if packet.qos == 2:
            self.delivered_once.add(number)
        self.order.on_delivery(number, (message.publisher, message.topic, message.qos, packet.qos))

    def is_sent_twice(self, number: int) -> bool:
        return any(number in each.sent_twice for each in self.publishers)

    def is_refused_unread(self, number: int) -> bool:
        return any(number in each.refused_unread for each in self.publishers)

    def absorb(self) -> None:
        """All clients take what has arrived."""
        for publisher in self.publishers:
            publisher.absorb()
        for packet in self.peer.take() if self.peer is not None else ():
            self.take(packet)

    def take(self, packet: Packet) -> None:
        match packet:
            case Suback():
                topic_filter, qos = self.asked.pop(packet.packet_id)
                assert packet.reasons == [qos]
                self.subscriptions[topic_filter] = qos
                self.doubtful.discard(topic_filter)
            case Unsuback():
                topic_filter, _ = self.asked.pop(packet.packet_id)
                self.possible.discard(topic_filter)
                self.doubtful.discard(topic_filter)
            case Disconnect(reason=Reason.SESSION_TAKEN_OVER):
                self.peer = None
            case Disconnect(reason=Reason.QUOTA_EXCEEDED):
                assert self.was_full, "disconnected without a reason"
                self.peer = None
            case _:
                self.client.take(packet, self.is_sent_twice)

    def advance(self, progress: int) -> None:
        if progress == TURN:
            self.world.turn()
        elif progress == SYNC:
            self.world.turn()
            self.world.sync()
        elif progress == SETTLE:
            self.world.settle()
        elif progress == TICK:
            self.world.tick()

    def advance_and_absorb(self, progress: int) -> None:
        self.advance(progress)
        self.absorb()

    # The subscriber

    def connect(self, clean: bool, window: int) -> None:
        self.world.free_disk()
        self.peer = self.world.connect("s", clean=clean, receive_maximum=window)
        if self.left_peer is not None:
            self.order.note_lost(self.left_peer.take())
            self.left_peer = None
        is_present = self.peer.connack.session_present
        assert is_present == (self.has_session and not clean), "the session is gone, or should be"
        if not is_present:
            self.forget_session()
        self.has_session = True
        self.learn_subscriptions()
        self.client.connected(window, is_present, has_crashed=self.has_crashed)
        self.has_crashed = False
        self.absorb()

    def forget_session(self) -> None:
        self.subscriptions.clear()
        self.doubtful.clear()
        self.asked.clear()
        self.delivered_once.clear()
        self.order.clear()
        for message in self.messages.values():
            message.possible.clear()
            message.owing.clear()

    def learn_subscriptions(self) -> None:
        """What was asked for and not answered is there or not; of everything else the broker knows as much as the client."""
        session = self.world.broker.sessions.get("s")
        assert session is not None
        there = {written: subscription.qos for written, subscription in session.subscriptions.items()}
        self.doubtful |= {topic_filter for topic_filter, _ in self.asked.values()}
        self.asked.clear()
        for topic_filter in set(there) ^ set(self.subscriptions):
            assert topic_filter in self.doubtful, f"{topic_filter} is there, or gone, by itself"
        self.subscriptions = {each: qos for each, qos in there.items() if each not in self.doubtful}
        self.possible = set(there) | self.doubtful

    def leave(self, action: Leaves) -> None:
        assert self.peer is not None
        self.advance(action.progress)
        if action.end == "goodbye" and not self.peer.is_closed:
            self.peer.disconnect()
        elif action.end == "cut":
            self.peer.cut()
        self.drop_peer()
        if action.back_with or action.end == "taken over":
            self.connect(False, action.back_with or 3)

    def drop_peer(self) -> None:
        """The connection is over; the client does not read what was written to it."""
        if self.peer is not None:
            self.left_peer, self.peer = self.peer, None

    def subscribe(self, peer: Peer, action: Subscribes) -> None:
        topic_filter, qos = action.topic_filter, action.qos
        self.packet_id += 1
        self.asked[self.packet_id] = (topic_filter, qos)
        if qos < 1:  # what waits may be lost from now on
            self.subscriptions.pop(topic_filter, None)
            for message in self.messages.values():
                message.owing.discard(topic_filter)
        if qos < 0:
            peer.send(Unsubscribe(self.packet_id, [topic_filter]))
        else:
            self.possible.add(topic_filter)
            for message in self.messages.values():
                if not message.is_acknowledged and not message.is_refused and matches(topic_filter, message.topic):
                    message.possible.add(topic_filter)
            peer.send(Subscribe(self.packet_id, [SubscribeOption(topic_filter, qos)]))
        self.advance_and_absorb(action.progress)

    def answer(self, peer: Peer, action: Answers) -> None:
        for place in action.places:
            if self.client.answers:
                peer.send(self.client.answer(place % len(self.client.answers)))
        self.advance_and_absorb(action.progress)

    # The publishers

    def publish(self, action: Publishes) -> None:
        publisher = self.publishers[action.which]
        if not publisher.is_connected:
            self.world.free_disk()
        topic, qos = action.topic, action.qos
        for _ in range(action.count):
            number = len(self.messages)
            possible = {each for each in self.possible if matches(each, topic)}
            owing = {each for each, least in self.subscriptions.items() if least and qos and matches(each, topic)}
            self.messages[number] = Message(publisher.client_id, topic, qos, action.retain, possible, owing)
            publisher.publish(self.world, number, topic, qos, action.retain)
        self.advance_and_absorb(action.progress)

    def lose_a_publisher(self, action: LosesPublisher) -> None:
        self.advance(action.progress)
        self.publishers[action.which].lose()
        self.world.free_disk()
        self.publishers[action.which].connect(self.world)
        self.absorb()

    # The broker

    def end_a_life(self, action: Ends) -> None:
        self.advance(action.progress)
        if action.arrives:
            self.absorb()
        is_move = action.end == "handed over"
        if is_move:
            self.world.move()
            self.absorb()
        elif action.end == "stopped":
            self.world.restart()
        else:
            self.world.crash(loses_power=action.end == "lost power")
        self.drop_peer()
        # A move writes everything down: the next node knows as much as the last one did.
        self.has_crashed |= not is_move
        self.was_full &= is_move
        self.client.life += not is_move
        for publisher in self.publishers:
            publisher.forget_connection()
        self.check_closure()
        if action.back_with:
            self.connect(False, action.back_with)

    def check_closure(self) -> None:
        """Every record at or below the position is answered or in flight, by what is on disk."""
        stored = [each for each in self.world.broker.turn_writer.storage.sessions.load() if each.session.client_id == "s"]
        if not stored:
            assert not self.has_session
            return
        cursor = stored[0].cursor
        in_flight = {(each.shard, each.timestamp) for each in cursor.inflight}
        replay = self.world.log.replay(["#"], 0, with_session_only=True)
        while not replay.is_caught_up:
            for shard, record in replay.next(100):
                number = int(record.payload)
                if record.timestamp <= cursor.positions[shard] and self.messages[number].owing:
                    is_safe = number in self.client.answered or (shard, record.timestamp) in in_flight
                    assert is_safe, f"{number} is behind the session's position, neither answered nor in flight"

    # The end

    def finish(self) -> None:
        """With healthy connections everything comes that is owed."""
        self.world.free_disk()
        for publisher in self.publishers:
            publisher.lose()
            publisher.connect(self.world)
        self.advance_and_absorb(SETTLE)
        if self.peer is not None:
            self.leave(Leaves("cut", NOTHING, 0))
        self.connect(False, 3)
        self.advance_and_absorb(SETTLE)
        while self.client.answers:
            assert self.peer is not None
            self.peer.send(self.client.answer(0))
            self.advance_and_absorb(SETTLE)
        owed = {number for number, each in self.messages.items() if each.is_acknowledged and each.owing}
        assert owed <= self.order.delivered, f"acknowledged and not delivered: {sorted(owed - self.order.delivered)}"
        assert not self.client.known
        session = self.world.broker.sessions.get("s")
        assert session is not None
        assert (session.flow.inflight_messages(), session.flow.outstanding) == (0, 0)
        assert session.flow.is_following
