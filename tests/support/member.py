"""Members of a shared group on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from braidmq.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from tests.support.clients.wire import Wire, unique
from tests.support.stage import wait_until


class Member:
    """A member with a durable session; what it knows of its QoS 2 messages outlives its connections.

    ``start``: from where on the group is to read the log, if this member is the first.
    """

    def __init__(self, qos: int, topic_filter: str, *, group: str = "g", window: int = 20, start: str = "") -> None:
        self.client_id = unique()
        self.accepted: list[bytes] = []
        self._qos = qos
        self._filter = f"$share/{group}/{topic_filter}"
        self._asked: dict[str, Any] = {"user_properties": (("stream-offset", start),)} if start else {}
        self._known: dict[int, bytes] = {}
        self._fields = {"persistent": True, "session_expiry_interval": 3600, "receive_maximum": window}
        self._wire: Wire | None = None

    def connect(self, port: int, *, subscribes: bool = False) -> Member:
        self._wire = Wire("127.0.0.1", port).connect(self.client_id, **self._fields)
        if subscribes:
            self._wire.subscribe(self._filter, qos=self._qos, **self._asked)
        else:
            assert self._wire.connack.session_present
        return self

    def lose(self) -> None:
        assert self._wire is not None
        self._wire.close()

    def serve(self, count_max: int = 1_000_000, *, answers: bool = True, wait_s: float = 0.0) -> int:
        """Take what has come, at most so many packets; how many there were."""
        assert self._wire is not None
        taken = 0
        while taken < count_max and self._wire.has_news(wait_s):
            answer = self._take(self._wire.receive_any())
            if answers:
                self._wire.send(answer)
            taken += 1
        return taken

    def _take(self, packet: Packet) -> Packet:
        match packet:
            case Publish(qos=1):
                self.accepted.append(packet.payload)
                return Puback(packet.packet_id or 0)
            case Publish(qos=2):
                packet_id = packet.packet_id or 0
                if packet_id not in self._known:
                    self._known[packet_id] = packet.payload
                    self.accepted.append(packet.payload)
                assert self._known[packet_id] == packet.payload
                return Pubrec(packet_id)
            case Pubrel():
                self._known.pop(packet.packet_id, None)
                return Pubcomp(packet.packet_id)
        raise AssertionError(f"unexpected: {packet!r}")


def serve_until(members: list[Member], is_enough: Callable[[], bool]) -> None:
    """Let the members take what comes until it is enough, then until nothing comes any more."""

    def is_done() -> bool:
        for member in members:
            member.serve()
        return is_enough()

    wait_until(is_done, "the members have got what they should", 20.0)
    while any(member.serve(wait_s=0.2) for member in members):
        pass
