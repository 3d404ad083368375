"""A shared group over several nodes against a model: any order of publishing, acknowledging, leaving, moving, cuts and deaths.

What a client has acknowledged is given to no member again; what a client was sent with QoS 2 is given to no other member; and in
the end every message was acknowledged, except QoS 2 that ended with a memory session.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from braidmq.mqtt.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.support.simulator.cluster_world import ClusterWorld, Replicant
from tests.support.simulator.peer import Peer

SHARED = "$share/g/a"
EXPIRY = {"d1": 1000, "d2": 1000, "m1": 0, "m2": 0}  # durable and memory sessions, by client id
CLIENTS = st.sampled_from(sorted(EXPIRY))
PLACES = st.sampled_from(["core", "n1", "n2"])


class Seen:
    """What a client's session has of a message that it did not complete."""

    def __init__(self) -> None:
        self.open: dict[int, Publish] = {}  # by packet id
        self.received: set[int] = set()  # packet ids of QoS 2 that it has answered with PUBREC


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = ClusterWorld(history={"shards": 2})
        self.nodes: dict[str, Replicant] = {}
        self.nodes_made = 0
        self.cut: set[str] = set()
        self.clients: dict[str, tuple[Peer, str]] = {}  # those that are connected, and where
        self.seen: dict[str, Seen] = {}
        self.members: set[str] = set()
        self.published: dict[bytes, int] = {}
        self.done: set[bytes] = set()  # acknowledged
        self.owners: dict[bytes, str] = {}  # of QoS 2 messages that a client was sent
        self.lost: set[bytes] = set()  # QoS 2 that ended with its session

    @initialize(qos=st.sampled_from([1, 2]))
    def begin(self, qos: int) -> None:
        self.qos = qos
        for name in ("n1", "n2"):
            self._make_node(name)
        self.publisher = self.world.client("p", expiry=0)
        self._connect("d1", "n1")

    def _make_node(self, name: str) -> None:
        self.nodes_made += 1
        self.nodes[name] = self.world.replicant(f"{name}-{self.nodes_made}")

    def _where(self, place: str) -> Replicant | ClusterWorld:
        return self.world if place == "core" else self.nodes[place]

    def _connect(self, client_id: str, place: str) -> None:
        client = self._where(place).client(client_id, expiry=EXPIRY[client_id])
        self.clients[client_id] = client, place
        seen = self.seen.setdefault(client_id, Seen())
        # A lease of QoS 1 ended with the connection (S10): what was sent on it is another member's now, or comes again.
        seen.open = {packet_id: packet for packet_id, packet in seen.open.items() if packet.qos == 2}
        assert client.connack.session_present == (client_id in self.members and EXPIRY[client_id] > 0)
        if not client.connack.session_present:
            self._end_session(client_id)
            self.seen[client_id] = Seen()
        if client_id not in self.members:
            self._take(client_id, client.subscribe(SHARED, qos=self.qos))
            self.members.add(client_id)

    def _end_session(self, client_id: str) -> None:
        self.lost |= {message for message, owner in self.owners.items() if owner == client_id and message not in self.done}
        self.members.discard(client_id)

    def _leave(self, client_id: str) -> None:
        del self.clients[client_id]
        if not EXPIRY[client_id]:
            self._receive_all()
            self._end_session(client_id)

    # What happens

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        for _ in range(count):
            message = b"%d" % len(self.published)
            self.publisher.publish("a", message, qos=self.qos)
            self.published[message] = self.qos

    @rule(client_id=CLIENTS)
    def acknowledge(self, client_id: str) -> None:
        self._receive_all()
        if client_id not in self.clients or self.clients[client_id][1] in self.cut:
            return
        client, _ = self.clients[client_id]
        seen = self.seen[client_id]
        for packet_id, packet in list(seen.open.items()):
            client.send(Puback(packet_id) if packet.qos == 1 else Pubrec(packet_id))
            del seen.open[packet_id]
            self.done.add(packet.payload)
        self._receive_all()

    @precondition(lambda self: self.clients)
    @rule(client_id=CLIENTS)
    def lose_client(self, client_id: str) -> None:
        if client_id in self.clients and self.clients[client_id][1] not in self.cut:
            self._receive_all()
            self.clients[client_id][0].cut()
            self.world.settle()
            self._leave(client_id)

    @rule(client_id=CLIENTS, place=PLACES)
    def connect(self, client_id: str, place: str) -> None:
        """Anew, or taking the session from where it is."""
        if place in self.cut or (client_id in self.clients and self.clients[client_id][1] in self.cut):
            return
        self._receive_all()
        if client_id in self.clients and not EXPIRY[client_id]:
            return
        self.clients.pop(client_id, None)
        self._connect(client_id, place)

    @rule(client_id=st.sampled_from(["d2", "m1", "m2"]))
    def unsubscribe(self, client_id: str) -> None:
        if client_id in self.clients and self.clients[client_id][1] not in self.cut and client_id in self.members:
            client, _ = self.clients[client_id]
            self._receive_all()
            self._take(client_id, client.unsubscribe(SHARED))
            self._take(client_id, client.subscribe(SHARED, qos=self.qos))

    @rule(name=st.sampled_from(["n1", "n2"]))
    def cut_node(self, name: str) -> None:
        if name not in self.cut:
            self._receive_all()
            self.nodes[name].cut()
            self.cut.add(name)

    @rule(name=st.sampled_from(["n1", "n2"]))
    def connect_node(self, name: str) -> None:
        if name in self.cut:
            self.cut.remove(name)
            self.nodes[name].connect()

    @rule(name=st.sampled_from(["n1", "n2"]))
    def kill_node(self, name: str) -> None:
        self._receive_all()
        self.cut.discard(name)
        gone = [client_id for client_id, (_, place) in self.clients.items() if place == name]
        left = [self.clients.pop(client_id)[0] for client_id in gone]
        self.nodes[name].die()
        assert left is not None  # the dead node's clients see nothing more
        for client_id in gone:
            if not EXPIRY[client_id]:
                self._end_session(client_id)
        self._make_node(name)

    # What clients see

    def _receive_all(self) -> None:
        self.world.settle()
        for client_id, (client, _) in list(self.clients.items()):
            self._take(client_id, client.take())

    def _take(self, client_id: str, packets: object) -> None:
        seen = self.seen[client_id]
        client = self.clients[client_id][0] if client_id in self.clients else None
        assert isinstance(packets, list)
        for packet in packets:
            if isinstance(packet, Pubrel):
                assert client is not None
                client.send(Pubcomp(packet.packet_id))
                continue
            assert isinstance(packet, Publish), packet
            message = packet.payload
            assert message not in self.done, f"{message!r} was acknowledged"
            assert packet.packet_id is not None
            if packet.qos == 2:
                assert self.owners.setdefault(message, client_id) == client_id, f"{message!r} was another client's"
                assert message not in self.lost
            seen.open[packet.packet_id] = packet

    def teardown(self) -> None:
        try:
            for name in list(self.cut):
                self.connect_node(name)
            if "d1" not in self.clients and self.seen:
                self._receive_all()
                self._connect("d1", "core")
            if self.seen:
                for _ in range(40):
                    before = len(self.done)
                    for client_id in list(self.clients):
                        self.acknowledge(client_id)
                    if len(self.done) == before:
                        break
                waiting = {message for message, owner in self.owners.items() if owner not in self.clients}
                assert self.done | self.lost | waiting == set(self.published)
        finally:
            self.world.close()


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
