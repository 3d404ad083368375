"""Inbound QoS 2 of a session: packet ids that its client has not released, and those whose messages are not committed yet."""

from __future__ import annotations

_FEW = 256  # up to this many ids are in a set; more are in a bitmap of all 65,535
_BITS_BYTES = 8192


class Inbound:
    """The packet ids of QoS 2 messages that the client has published and not released."""

    __slots__ = ("_bits", "_pending", "_received", "_received_count")

    def __init__(self) -> None:
        # Most sessions never need these, so they are created on first use.
        self._received: set[int] | None = None
        self._bits: bytearray | None = None  # replaces the set if there are many
        self._received_count = 0
        # Received ids whose messages are not committed yet, and how often each was sent on the present connection.
        self._pending: dict[int, int] | None = None

    def receive(self, packet_id: int) -> bool:
        """Add the id of a QoS 2 PUBLISH; False if it is a duplicate of one that is not released yet [MQTT-4.3.3-10]."""
        if self.is_receiving(packet_id):
            return False
        self._received_count += 1
        bits = self._bits
        received = self._received
        if bits is not None:
            bits[packet_id >> 3] |= 1 << (packet_id & 7)
            return True
        if received is None:
            received = self._received = set()
        received.add(packet_id)
        if len(received) > _FEW:
            bits = self._bits = bytearray(_BITS_BYTES)
            for each in received:
                bits[each >> 3] |= 1 << (each & 7)
            self._received = None
        return True

    def is_receiving(self, packet_id: int) -> bool:
        """Whether a QoS 2 PUBLISH with this id has arrived and is not released."""
        bits = self._bits
        if bits is not None:
            return bits[packet_id >> 3] >> (packet_id & 7) & 1 == 1
        return self._received is not None and packet_id in self._received

    def forget_received(self, packet_id: int) -> bool:
        """The client has sent PUBREL: the id is free again. Returns False for an unknown one."""
        if not self.is_receiving(packet_id):
            return False
        self._received_count -= 1
        bits = self._bits
        if bits is None:
            assert self._received is not None  # is_receiving has found it there
            self._received.remove(packet_id)
        elif self._received_count:
            bits[packet_id >> 3] &= ~(1 << (packet_id & 7)) & 255
        else:
            self._bits = None
        return True

    def received_ids(self) -> list[int]:
        """The packet ids of the client's QoS 2 messages that it has not released."""
        if self._bits is not None:
            return [packet_id for packet_id in range(1, _BITS_BYTES * 8) if self.is_receiving(packet_id)]
        return [] if self._received is None else list(self._received)

    def settled_ids(self) -> list[int]:
        """Those of them whose messages were committed, or need not be: the rest may still be rejected."""
        pending = self._pending or {}
        return [packet_id for packet_id in self.received_ids() if packet_id not in pending]

    def forget_all_received(self) -> None:
        """The session has ended."""
        self._received = self._bits = self._pending = None
        self._received_count = 0

    def expect_commit(self, packet_id: int) -> None:
        """A QoS 2 message with this id goes to the log: it counts as received, and its PUBREC waits for the commit."""
        self.receive(packet_id)
        if self._pending is None:
            self._pending = {}
        self._pending[packet_id] = 1

    def is_pending(self, packet_id: int) -> bool:
        """Whether the message of this duplicate is not committed yet; then the duplicate's PUBREC waits too."""
        pending = self._pending
        if pending is None or packet_id not in pending:
            return False
        pending[packet_id] += 1
        return True

    def forget_waiting(self) -> None:
        """A new connection begins: PUBLISH packets of the last one are not answered; the client resends them [MQTT-4.4.0-1]."""
        pending = self._pending
        if pending is not None:
            for packet_id in pending:
                pending[packet_id] = 0

    def end_pending(self, packet_id: int) -> int:
        """The message is committed or rejected; returns how many PUBLISH packets of the connection wait for the answer."""
        return 0 if self._pending is None else self._pending.pop(packet_id, 0)
