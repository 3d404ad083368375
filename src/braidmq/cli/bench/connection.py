"""The connections of a benchmark: minimal MQTT clients that process incoming packets in runs and write in batches."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from braidmq.base.errors import ProtocolViolation
from braidmq.cli.bench.frames import PACKET_IDS, PublishBlock
from braidmq.cli.bench.runs import Run, find_runs
from braidmq.cli.bench.tally import Sequences, Tally
from braidmq.cli.errors import CommandFailed
from braidmq.client.connection import ANSWER_TIMEOUT_S
from braidmq.client.errors import reason_in_words, refused_login
from braidmq.mqtt.codec import decode, encode
from braidmq.mqtt.packets import Connack, Connect, Disconnect, PacketType, Pingreq, Suback, Subscribe, SubscribeOption
from braidmq.mqtt.reasons import FAILURE

_PINGREQ: Final = encode(Pingreq(), 4)
_DISCONNECT: Final = encode(Disconnect(), 4)  # the same two bytes in MQTT 5
_ACKNOWLEDGEMENT_BYTES: Final = 4
_AT_ONCE: Final = 1024  # messages that a publisher without a window writes before yielding to others


class BenchConnection(asyncio.Protocol):
    """Logs in, answers acknowledgements and sends pings; subclasses publish and receive."""

    def __init__(self, login: Connect, tally: Tally) -> None:
        self.login = login
        self.tally = tally
        self.is_open = False
        self._version = login.version
        self._rest = b""
        self._answer: asyncio.Future[Connack | Suback] | None = None
        self._transport: asyncio.Transport | None = None
        self._is_leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a lost connection, unless this side closed it."""
        if self.is_open:
            self.is_open = False
            if not self._is_leaving:
                self.tally.disconnected += 1
        self._fail(CommandFailed("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Process every complete packet."""
        now_ns = time.time_ns()
        if self._rest:
            data = self._rest + data
        try:
            runs, used = find_runs(data, self._version)
            for run in runs:
                self._take(data, run, now_ns)
        except ProtocolViolation as violation:
            self.tally.failures[f"the server broke the protocol: {violation.detail}"] += 1
            self.write_raw_and_close(b"")
            return
        self._rest = data[used:] if used < len(data) else b""
        self.after_reading()

    def after_reading(self) -> None:
        """Called when all packets received together have been processed."""

    async def log_in(self) -> Connack:
        """Send CONNECT and await CONNACK; raises CommandFailed."""
        connack = cast(Connack, await self._ask(encode(self.login, self._version), "CONNECT"))
        if connack.reason:
            raise refused_login(connack.reason, self._version, connack.properties.reason_string)
        self.tally.connected += 1
        self.is_open = True
        return connack

    async def subscribe(self, topic_filters: list[str], qos: int) -> None:
        """Subscribe; raises CommandFailed if the server rejects one of the filters."""
        packet = Subscribe(1, [SubscribeOption(topic_filter, qos) for topic_filter in topic_filters])
        suback = cast(Suback, await self._ask(encode(packet, self._version), "SUBSCRIBE"))
        for topic_filter, reason in zip(topic_filters, suback.reasons, strict=True):
            if reason >= FAILURE:
                raise CommandFailed(f"the server rejected the subscription to {topic_filter!r}: {reason_in_words(reason)}")

    def ping(self) -> None:
        """Send PINGREQ."""
        if self.is_open and self._transport is not None:
            self._transport.write(_PINGREQ)

    def leave(self) -> None:
        """Send DISCONNECT and close."""
        self._is_leaving = True
        self.write_raw_and_close(_DISCONNECT if self.is_open else b"")

    def write_raw_and_close(self, last_words: bytes) -> None:
        """Write these bytes and close."""
        if self._transport is not None and not self._transport.is_closing():
            if last_words:
                self._transport.write(last_words)
            self._transport.close()

    # -- frames ----------------------------------------------------------------------------------------------------------

    def _take(self, data: bytes, run: Run, now_ns: int) -> None:
        match run.first_byte >> 4:
            case PacketType.PUBLISH:
                self._acknowledge(data, run)
                self.take_messages(data, run, now_ns)
            case PacketType.PUBACK | PacketType.PUBCOMP:
                self.take_acknowledgements(run.frames, _refusals(data, run), now_ns)
            case PacketType.PUBREC:
                self._take_pubrecs(data, run, now_ns)
            case PacketType.PUBREL:
                self._write(_answers(b"\x70\x02", data, run))
            case PacketType.CONNACK | PacketType.SUBACK:
                body = data[run.at + run.body_at : run.at + run.stride]
                packet = decode(run.first_byte, body, self._version)
                if self._answer is not None and not self._answer.done():
                    self._answer.set_result(cast(Connack | Suback, packet))
            case PacketType.DISCONNECT:
                body = data[run.at + run.body_at : run.at + run.stride]
                reason = cast(Disconnect, decode(run.first_byte, body, self._version)).reason
                self.tally.failures[f"the server ended the connection: {reason_in_words(reason)}"] += 1
            case _:
                pass  # PINGRESP and other packets that are not counted

    def _acknowledge(self, data: bytes, run: Run) -> None:
        qos = run.first_byte >> 1 & 0x03
        if qos:
            self._write(_answers(b"\x40\x02" if qos == 1 else b"\x50\x02", data, run))

    def _take_pubrecs(self, data: bytes, run: Run, now_ns: int) -> None:
        refusals = _refusals(data, run)
        if refusals == 0:
            self._write(_answers(b"\x62\x02", data, run))
            return
        # A PUBREC with an error ends the exchange. It is longer than a plain one, so runs are seldom mixed.
        reasons = run.lane(data, run.packet_id_at + 2)
        lanes = zip(run.lane(data, run.packet_id_at), run.lane(data, run.packet_id_at + 1), reasons, strict=True)
        self._write(b"".join([bytes((0x62, 2, high, low)) for high, low, reason in lanes if reason < FAILURE]))
        self.take_acknowledgements(refusals, refusals, now_ns)

    def take_messages(self, data: bytes, run: Run, now_ns: int) -> None:
        """Process a run of received messages."""

    def take_acknowledgements(self, count: int, refusals: int, now_ns: int) -> None:
        """Process acknowledgements of `count` messages, `refusals` of which were rejected."""

    # -- inside ----------------------------------------------------------------------------------------------------------

    def _write(self, data: bytes | bytearray) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    async def _ask(self, frame: bytes, what: str) -> Connack | Suback:
        self._answer = asyncio.get_running_loop().create_future()
        self._write(frame)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._answer
        except TimeoutError:
            raise CommandFailed(f"the server did not answer {what} within {ANSWER_TIMEOUT_S:g} s") from None

    def _fail(self, failure: CommandFailed) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)


class TimedConnection(BenchConnection):
    """Only measures how long its login takes."""

    async def log_in(self) -> Connack:
        """Log in; the time from CONNECT to CONNACK is recorded as a latency."""
        began_ns = time.time_ns()
        connack = await super().log_in()
        self.tally.add_latency(time.time_ns() - began_ns)
        return connack


class Subscriber(BenchConnection):
    """Counts what it receives and, in a closed loop, notifies the publisher."""

    def __init__(
        self,
        login: Connect,
        tally: Tally,
        sequences: Sequences,
        on_delivery: Callable[[int, int], None] | None = None,
        on_batch: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(login, tally)
        self._sequences = sequences
        self._on_delivery = on_delivery
        self._on_batch = on_batch

    def take_messages(self, data: bytes, run: Run, now_ns: int) -> None:
        """Count a run of messages."""
        fresh = self._sequences.take(data, run, now_ns)
        if self._on_delivery is not None:
            for publisher, count in fresh:
                self._on_delivery(publisher, count)

    def after_reading(self) -> None:
        """Let waiting publishers continue."""
        if self._on_batch is not None:
            self._on_batch()


class BenchPublisher(BenchConnection):
    """Sends from its block on request; ``window`` limits unacknowledged messages (QoS 1 and 2)."""

    def __init__(
        self, login: Connect, tally: Tally, block: PublishBlock, *, qos: int, window: int, times_acknowledgements: bool = True
    ) -> None:
        super().__init__(login, tally)
        self.sent = 0
        self.settled = 0
        self.is_paused = False
        self.on_room: Callable[[], None] | None = None  # called when more may be sent
        self._block = block
        self._qos = qos
        self._window = min(window or PACKET_IDS, PACKET_IDS)
        self._times_acknowledgements = times_acknowledgements
        self._under_way: deque[tuple[int, int]] = deque()  # (count, sent at), oldest first

    async def log_in(self) -> Connack:
        """Log in, and respect the server's Receive Maximum from then on."""
        connack = await super().log_in()
        self._window = min(self._window, connack.properties.receive_maximum or self._window)
        return connack

    def send(self, wanted: int) -> int:
        """Send as many of ``wanted`` messages as the window and the socket allow; returns their number."""
        if not self.is_open or self.is_paused:
            return 0
        room = self._window - (self.sent - self.settled) if self._qos else _AT_ONCE
        count = min(wanted, room)
        if count <= 0:
            return 0
        now_ns = time.time_ns()
        self._write(self._block.take(self.sent, count, now_ns))
        self.sent += count
        self.tally.sent += count
        if self._qos and self._times_acknowledgements:
            self._under_way.append((count, now_ns))
        return count

    @property
    def unsettled(self) -> int:
        """The number of unacknowledged messages."""
        return self.sent - self.settled if self._qos else 0

    def take_acknowledgements(self, count: int, refusals: int, now_ns: int) -> None:
        """Acknowledgements come in the order of the messages ([MQTT-4.6.0-2]), so the oldest messages are settled."""
        self.settled += count
        self.tally.acknowledged += count - refusals
        self.tally.refused += refusals
        while count and self._under_way:
            waiting, sent_ns = self._under_way.popleft()
            if waiting > count:
                self._under_way.appendleft((waiting - count, sent_ns))
            settled = min(waiting, count)
            self.tally.add_latency(now_ns - sent_ns, settled)
            count -= settled

    def after_reading(self) -> None:
        """Send more if acknowledgements have made room."""
        if self.on_room is not None:
            self.on_room()

    def pause_writing(self) -> None:
        """Stop sending: the server reads too slowly."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """Continue sending."""
        self.is_paused = False
        if self.on_room is not None:
            self.on_room()


def _answers(header: bytes, data: bytes, run: Run) -> bytearray:
    """One acknowledgement with this header for the packet id of every packet of the run."""
    answers = bytearray((header + b"\0\0") * run.frames)
    answers[2::_ACKNOWLEDGEMENT_BYTES] = run.lane(data, run.packet_id_at)
    answers[3::_ACKNOWLEDGEMENT_BYTES] = run.lane(data, run.packet_id_at + 1)
    return answers


def _refusals(data: bytes, run: Run) -> int:
    """How many acknowledgements of the run reject their message; only MQTT 5 has a reason code, and only if it is not 0."""
    if run.stride <= _ACKNOWLEDGEMENT_BYTES:
        return 0
    return sum(reason >= FAILURE for reason in run.lane(data, run.packet_id_at + 2))
