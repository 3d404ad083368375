"""The flow of a session against a model of its client, with random disconnections, windows, acknowledgements and bounds.

The client here is a strict one: it keeps its half of the QoS 2 state over connections, and it looks at every packet for what the
specification does not allow a server to do. Each message has a topic of its own, so that drops can be told apart.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from braidmq.lane.path.message import Message
from braidmq.lane.routing.subscription import Subscription
from braidmq.mqtt.codec import encode
from braidmq.mqtt.packets import MQTT5, Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.support.simulator.lane import Bench, FakeChannel

TOPIC_BYTES = 5
OUTBOX_BYTES_MAX = 400


class Sessions(RuleBasedStateMachine):
    """One session, one client that comes and goes, one publisher that never rests."""

    @initialize(messages_max=st.sampled_from((1, 5, 1000)), bytes_max=st.sampled_from((60, 10_000)), keeps_qos0=st.booleans())
    def start(self, messages_max: int, bytes_max: int, keeps_qos0: bool) -> None:
        self.bench = Bench(outbox_bytes_max=OUTBOX_BYTES_MAX)
        self.flow = self.bench.flow("c", messages_max, bytes_max, keeps_qos0)
        self.subscription = Subscription(self.flow, b"#", 2)
        self.channel: FakeChannel | None = None
        self.window = 0
        self.published: dict[int, int] = {}  # QoS by number
        self.on_the_way: list[Packet] = []  # written by the broker, not yet seen by the client
        self.answers: list[Puback | Pubrec | Pubcomp] = []  # that the client owes on this connection
        self.open_ids: set[int] = set()  # PUBLISH with QoS seen on the wire of this connection and not settled
        self.known: dict[int, int] = {}  # the client's QoS 2 state: packet id and number
        self.delivered: list[int] = []  # to the application of the client, repeats of QoS 1 included
        self.released: set[int] = set()  # QoS 2 whose PUBREC the broker has
        self.was_sent: set[int] = set()
        self.is_clogged = False

    # The network

    def look_at_what_was_written(self) -> None:
        assert self.channel is not None
        for packet in self.channel.sent():
            if isinstance(packet, Publish):
                self.check_publish(packet)
            self.on_the_way.append(packet)

    def check_publish(self, packet: Publish) -> None:
        number = int(packet.topic)
        assert packet.qos == self.published[number]
        if packet.qos == 0:
            return
        assert packet.packet_id is not None
        assert packet.packet_id not in self.open_ids, "a packet id in use was taken again"
        # [MQTT-3.3.1-1]; one that was in the outbox when the connection broke may be marked too.
        assert packet.dup or number not in self.was_sent, "sent again without DUP"
        assert number not in self.released, "QoS 2 sent again after PUBREC"
        self.was_sent.add(number)
        self.open_ids.add(packet.packet_id)
        assert len(self.open_ids) <= self.window, "more in flight than the Receive Maximum"

    @precondition(lambda self: self.channel is None)
    @rule(window=st.sampled_from((1, 2, 5, 100)))
    def connect(self, window: int) -> None:
        self.window = window
        self.is_clogged = False
        self.channel = self.bench.channel(self.flow, MQTT5, window)
        self.look_at_what_was_written()

    @precondition(lambda self: self.channel is not None)
    @rule()
    def lose_the_connection(self) -> None:
        self.flow.detach()
        self.channel = None
        self.on_the_way.clear()
        self.answers.clear()
        self.open_ids.clear()

    @precondition(lambda self: self.channel is not None and not self.is_clogged)
    @rule()
    def clog(self) -> None:
        assert self.channel is not None
        self.is_clogged = True
        self.channel.pause_writing()

    @precondition(lambda self: self.channel is not None and self.is_clogged)
    @rule()
    def unclog(self) -> None:
        assert self.channel is not None
        self.is_clogged = False
        self.channel.resume_writing()
        self.look_at_what_was_written()

    # The publisher

    @rule(qos=st.integers(0, 2), payload_bytes=st.sampled_from((0, 10, 50)))
    def publish(self, qos: int, payload_bytes: int) -> None:
        number = len(self.published)
        self.published[number] = qos
        topic = f"{number:0{TOPIC_BYTES}d}".encode()
        self.flow.deliver(Message(topic, bytes(payload_bytes), qos, False, "p"), self.subscription, qos, False)
        self.bench.lane.flush()
        if self.channel is not None:
            self.look_at_what_was_written()

    # The client

    @precondition(lambda self: self.on_the_way)
    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        taken, self.on_the_way = self.on_the_way[:count], self.on_the_way[count:]
        for packet in taken:
            match packet:
                case Publish(qos=0):
                    self.delivered.append(int(packet.topic))
                case Publish(qos=1):
                    assert packet.packet_id is not None
                    self.delivered.append(int(packet.topic))
                    self.answers.append(Puback(packet.packet_id))
                case Publish(qos=2):
                    assert packet.packet_id is not None
                    if packet.packet_id not in self.known:
                        self.known[packet.packet_id] = int(packet.topic)
                        self.delivered.append(int(packet.topic))
                    assert self.known[packet.packet_id] == int(packet.topic), "another message under an id not yet released"
                    self.answers.append(Pubrec(packet.packet_id))
                case Pubrel():
                    self.known.pop(packet.packet_id, None)
                    self.answers.append(Pubcomp(packet.packet_id))
                case _:
                    raise AssertionError(f"unexpected {packet!r}")

    @precondition(lambda self: self.answers and self.channel is not None)
    @rule(data=st.data(), refuses=st.booleans())
    def answer(self, data: st.DataObject, refuses: bool) -> None:
        """In any order, though the specification wants order: the broker must bear it."""
        assert self.channel is not None
        answer = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        if isinstance(answer, Puback | Pubcomp):
            self.open_ids.discard(answer.packet_id)
        if isinstance(answer, Pubrec) and refuses and answer.packet_id in self.known:
            # A refusal settles the message: the client forgets its id at once.
            answer = Pubrec(answer.packet_id, 0x97)
            self.known.pop(answer.packet_id)
            self.open_ids.discard(answer.packet_id)
        elif isinstance(answer, Pubrec):
            self.released.add(self.known[answer.packet_id])
        # What the broker writes in return may use ids that this answer has freed.
        if answer.reason:
            self.channel.acknowledged(5, answer.packet_id, answer.reason)
            self.bench.lane.flush()
        else:
            self.channel.read(encode(answer, MQTT5))
        self.look_at_what_was_written()

    # What must hold

    @invariant()
    def bounds_are_kept(self) -> None:
        if not hasattr(self, "flow"):
            return
        flow = self.flow
        assert flow.queue_messages() <= flow.queue_messages_max
        assert 0 <= flow.queue_bytes <= flow.queue_bytes_max
        # A PUBREL is sent again whatever the window [MQTT-4.9.0-3]; that no PUBLISH passes it is checked where it is sent.
        assert 0 <= flow.outstanding <= max(self.window, flow.inflight_messages())
        assert (self.bench.state.queued_messages, self.bench.state.queued_bytes) == (flow.queue_messages(), flow.queue_bytes)
        counters = self.bench.state.counters
        sent = counters.publish_qos1_sent + counters.publish_qos2_sent
        assert sent - counters.acked - counters.inflight_lost == flow.inflight_messages()

    @invariant()
    def order_is_kept_and_qos_2_comes_once(self) -> None:
        if not hasattr(self, "flow"):
            return
        first: list[int] = []
        for number in self.delivered:
            if self.published[number] and number not in first:
                first.append(number)
        assert first == sorted(first), "out of order"
        exactly_once = [number for number in self.delivered if self.published[number] == 2]
        assert len(exactly_once) == len(set(exactly_once)), "QoS 2 delivered twice"

    def teardown(self) -> None:
        """With a healthy connection everything comes through that was not dropped with a reason."""
        if not hasattr(self, "flow"):
            return
        if self.channel is not None:
            self.lose_the_connection()
        self.connect(window=3)
        while self.on_the_way or self.answers:
            self.take(len(self.on_the_way) or 1)
            while self.answers:
                assert self.channel is not None
                answer = self.answers.pop(0)
                self.open_ids.discard(answer.packet_id)
                if isinstance(answer, Pubrec):
                    self.released.add(self.known[answer.packet_id])
                self.channel.read(encode(answer, MQTT5))
                self.look_at_what_was_written()
        dropped = {int(topic) for _, _, topic in self.bench.drops}
        lost_on_the_wire = {number for number, qos in self.published.items() if qos == 0}
        assert set(self.published) - set(self.delivered) - lost_on_the_wire <= dropped
        assert not dropped & {number for number in self.delivered if self.published[number]}
        assert self.flow.dropped == len(self.bench.drops)
        assert (self.flow.inflight_messages(), self.flow.queue_messages(), self.flow.outstanding) == (0, 0, 0)
        self.bounds_are_kept()
        self.order_is_kept_and_qos_2_comes_once()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(settings.get_profile("default"), max_examples=100, stateful_step_count=60, deadline=None)
