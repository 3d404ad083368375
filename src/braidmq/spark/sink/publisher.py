"""Publishes the rows of one partition, each once and in order, over as many connections as needed.

Rows are sent as far as the broker's window allows, and kept until they are settled. After a lost connection, the broker reports
its position on the next one, and later rows are sent again. `progress` has the rules (P2).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Final

from msgspec import Struct

from braidmq.base.backoff import Backoff
from braidmq.base.errors import Unavailable, UsageError
from braidmq.client.bulk import PINGRESP, PUBACK, PUBCOMP, PUBREC, Ack, ConnectionLost
from braidmq.client.errors import is_passing, reason_in_words
from braidmq.mqtt.packet_types import PACKET_ID_MAX
from braidmq.mqtt.producer_protocol import Request
from braidmq.mqtt.reasons import FAILURE, Reason
from braidmq.spark.sink.options import WriteOptions
from braidmq.spark.sink.producer_client import Joined, LaterBatch, ProducerClient, TakenOver, WrongShard
from braidmq.spark.sink.producer_part import ROWS_BITS, ROWS_MAX, ProducerPart
from braidmq.spark.sink.progress import SettledRows
from braidmq.spark.sink.rows import RowBatch, RowMaker

_SHARDS_USUAL: Final = 4
_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 3.0

# Called with the row's number, its batch and index in it, the reason and the detail; raises if that fails the task.
OnRefused = Callable[[int, RowBatch, int, int, str], None]


class _Queued(Struct):
    """A batch with rows that are not settled; `first` is the number of its row 0."""

    batch: RowBatch
    first: int

    @property
    def last(self) -> int:
        return self.first + len(self.batch) - 1


class RowPublisher:
    """One attempt at a partition: `open`, `add` batches, `finish`. Blocks; raises the error that ends the attempt."""

    def __init__(self, part: ProducerPart, options: WriteOptions, maker: RowMaker, on_refused: OnRefused) -> None:
        self.part = part
        self.progress = SettledRows()
        self.resumed_at = 0  # rows that an earlier attempt had published
        self.parts = 0  # one more than the highest partition of this batch that the broker knows
        self.is_done = False  # the broker has a later batch, so this one is skipped
        self._options = options
        self._maker = maker
        self._on_refused = on_refused
        self._client: ProducerClient | None = None
        self._queue: deque[_Queued] = deque()
        self._given = 0  # rows passed to `add`
        self._next = 1  # the next row to send
        self._first = 1  # the first row of this connection, with packet id 1
        self._window = 1
        self._packet_bytes_max = 0
        self._checks: dict[int, int] = {}  # check values by row, as the broker reported them
        self._refused_since: dict[int, float] = {}  # rows rejected for a reason that may pass
        self._told: set[int] = set()  # rejected rows already reported
        self._shards = _SHARDS_USUAL
        self._server = random.randrange(len(options.servers))
        self._tried_until = 0.0
        self._backoff = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S, spread=True)
        self._has_silent = False  # there were rows with QoS 0
        self._is_pinged = False
        self._is_refused = False  # a row was rejected on this connection

    # Rows

    def open(self) -> None:
        """Connect, and learn the position of an earlier attempt. Raises UsageError if the broker has a later batch."""
        self._begin_trying()
        try:
            self._reconnect()
        except LaterBatch as later:
            if not self._options.skips_earlier_batches:
                raise _earlier(self.part, later.sequence >> ROWS_BITS) from None
            self.is_done = True

    def add(self, batch: RowBatch) -> None:
        """Publish the next rows; returns when all are sent, or kept to be sent again."""
        if not len(batch):
            return
        queued = _Queued(batch, self._given + 1)
        self._given += len(batch)
        if self._given > ROWS_MAX:
            raise UsageError(f"a partition has more than {ROWS_MAX} rows", "use more partitions")
        self._check_rows(queued)
        if self.progress.settled >= queued.last:
            self._next = max(self._next, queued.last + 1)
            return
        self._queue.append(queued)
        for row in sorted(batch.problems):
            problem = batch.problems[row]
            self._refuse_unsent(queued.first + row, problem.reason, problem.detail)
        if batch.size_bound() > self._packet_bytes_max:
            for row in range(len(batch)):
                if batch.size_max(row) > self._packet_bytes_max:
                    detail = f"larger than the broker's maximum packet size of {self._packet_bytes_max} bytes"
                    self._refuse_unsent(queued.first + row, Reason.PACKET_TOO_LARGE, detail)
        self._drive(self._given, self._given - self._window)

    def finish(self) -> None:
        """Wait until every row is settled, and disconnect."""
        missing = [row for row in self._checks if row > self._given]
        if missing or self.resumed_at > self._given:
            raise _changed(
                f"an earlier attempt had published {max(missing, default=self.resumed_at)} rows of this partition, "
                f"which now has {self._given}"
            )
        self._drive(self._given, self._given)
        if self._has_silent:
            self._confirm()
        assert self._client is not None
        self._client.leave()

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _check_rows(self, queued: _Queued) -> None:
        for row in [each for each in self._checks if queued.first <= each <= queued.last]:
            if queued.batch.check(row - queued.first) != self._checks.pop(row):
                raise _changed(f"row {row} of this partition is not the one that an earlier attempt published as its last")

    def _refuse_unsent(self, row: int, reason: int, detail: str) -> None:
        """Settle a row that cannot be sent: its number is used up once all rows before it are settled."""
        if row <= self.progress.settled:
            return
        self._drive(row - 1, row - 1)
        self._report(row, reason, detail)
        self.progress.refuse(row)
        self._next = max(self._next, row + 1)
        if not self.part.keys:
            self._reconnect()

    def _report(self, row: int, reason: int, detail: str) -> None:
        if row in self._told:
            return
        queued = next(each for each in self._queue if each.first <= row <= each.last)
        self._on_refused(row, queued.batch, row - queued.first, reason, detail)
        self._told.add(row)

    # Sending

    def _drive(self, sent: int, settled: int) -> None:
        """Work until rows up to `sent` are sent and rows up to `settled` are settled."""
        while self._next <= sent or self.progress.settled < settled:
            try:
                self._step(sent)
            except ConnectionLost as lost:
                self._recover(lost)
        self._let_go()

    def _step(self, sent: int) -> None:
        client = self._client
        assert client is not None
        in_flight = self._next - 1 - self.progress.settled
        room = self._window - in_flight
        # Few large writes are faster than many small ones.
        share = max(1, self._window // 4)
        if self._next <= sent and room >= min(share, sent - self._next + 1):
            self._send(client, min(sent, self._next + share - 1))
            client.read(is_waiting=False)
        else:
            client.read(is_waiting=True)
        self._take_acks(client)

    def _send(self, client: ProducerClient, last: int) -> None:
        queued = next(each for each in self._queue if each.first <= self._next <= each.last)
        last = min(last, queued.last)
        start, end = self._next - queued.first, last - queued.first + 1
        frames = queued.batch.encode(start, end, self._id_of(self._next), self._maker.topics)
        without_answer = [] if queued.batch.common_qos else [row for row in range(start, end) if not queued.batch.qos(row)]
        self._next = last + 1
        client.send(frames)
        for row in without_answer:
            self._has_silent = True
            self.progress.acknowledge(queued.first + row)

    def _let_go(self) -> None:
        while self._queue and self._queue[0].last <= self.progress.settled:
            self._queue.popleft()
        if not self._queue:
            self._told.clear()

    def _id_of(self, row: int) -> int:
        return (row - self._first) % PACKET_ID_MAX + 1

    def _row_of(self, packet_id: int) -> int:
        """The row in flight with this packet id; there is at most one."""
        row = self.progress.settled + 1
        return row + (packet_id - self._id_of(row)) % PACKET_ID_MAX

    # Acknowledgements

    def _take_acks(self, client: ProducerClient) -> None:
        before = self.progress.settled
        while self.progress.settled < self._next - 1:
            first = self.progress.settled + 1
            count = client.take_run(self._id_of(first), self._next - first)
            if not count:
                break
            self.progress.acknowledge_next(count)
        released: list[bytes] = []
        for ack in client.take_acks():
            self._take_ack(ack, released)
        if released:
            client.send(b"".join(released))
        if self.progress.settled > before:
            self._begin_trying()
        if client.goodbye is not None:
            self._end(client)

    def _take_ack(self, ack: Ack, released: list[bytes]) -> None:
        if ack.kind == PINGRESP:
            self._is_pinged = False
        elif ack.kind in (PUBACK, PUBREC) and ack.reason >= FAILURE:
            self._take_refusal(self._row_of(ack.packet_id), ack.reason)
        elif ack.kind == PUBREC:
            released.append(b"\x62\x02" + ack.packet_id.to_bytes(2, "big"))
        elif ack.kind in (PUBACK, PUBCOMP) and self._row_of(ack.packet_id) < self._next:
            self.progress.acknowledge(self._row_of(ack.packet_id))

    def _take_refusal(self, row: int, reason: int) -> None:
        self._is_refused = True
        if is_passing(reason):
            since = self._refused_since.setdefault(row, monotonic())
            if monotonic() - since < self._options.retry_s / 2:
                raise ConnectionLost(f"the broker cannot store messages now: {reason_in_words(reason)}", reason)
        self._report(row, reason, "")
        self.progress.refuse(row)
        if not self.part.keys:
            # After that, the broker accepts nothing more on this connection.
            raise ConnectionLost("a row was rejected")

    def _end(self, client: ProducerClient) -> None:
        """Raise the error for a DISCONNECT of the broker."""
        goodbye = client.goodbye
        assert goodbye is not None
        said = goodbye.properties.reason_string
        detail = f"{client.server} has ended the connection: {reason_in_words(goodbye.reason)}{f', {said}' if said else ''}"
        if goodbye.reason == Reason.SESSION_TAKEN_OVER:
            raise TakenOver(detail, "another attempt is publishing this partition, or another query uses this producer name")
        if self._is_refused:
            raise ConnectionLost("a row was rejected")
        if is_passing(goodbye.reason):
            raise ConnectionLost(detail, goodbye.reason)
        raise UsageError(detail, "unless another reason is given, a row with QoS 0 was rejected: use QoS 1 to find out which")

    def _confirm(self) -> None:
        """Make sure that the broker has received rows that are not acknowledged (QoS 0)."""
        self._is_pinged = True
        while self._is_pinged:
            client = self._client
            assert client is not None
            try:
                client.ping()
                while self._is_pinged:
                    client.read(is_waiting=True)
                    self._take_acks(client)
            except ConnectionLost as lost:
                self._recover(lost)

    # Connections

    def _begin_trying(self) -> None:
        self._tried_until = monotonic() + self._options.retry_s
        self._backoff.reset()

    def _recover(self, lost: ConnectionLost) -> None:
        """Process what arrived before the connection ended, then connect again."""
        client = self._client
        if client is not None:
            try:
                self._take_acks(client)
            except ConnectionLost as again:
                lost = again
            client.close()
            self._client = None
        if lost.reason:
            self._wait(lost)
        self._reconnect()

    def _reconnect(self) -> None:
        """Connect until the broker and this attempt agree on where to continue."""
        if self._client is not None:
            self._client.leave()
            self._client = None
        while True:
            try:
                client, joined = self._connect()
            except ConnectionLost as lost:
                self._server = (self._server + 1) % len(self._options.servers)
                self._wait(lost)
                continue
            self._client = client
            if self._agree(joined):
                break
            client.leave()
        self._is_refused = False
        self._window = min(joined.receive_maximum, self._options.in_flight_max)
        self._packet_bytes_max = joined.packet_bytes_max

    def _connect(self) -> tuple[ProducerClient, Joined]:
        part = self.part
        if part.keys:
            request = Request(part.base, name=part.producer, is_keyed=True)
        else:
            given_up = self.progress.give_up()
            skip = (0, 0) if given_up is None else (part.base + given_up[0], part.base + given_up[1])
            request = Request(part.base, skip, stops=True, name=part.producer, part=part.partition)
        for _ in range(2):
            client = ProducerClient.dial(self._options.servers[self._server], self._options)
            try:
                return client, client.join(part.client_id(self._shards), request.user_properties(), self._options)
            except WrongShard as wrong:
                self._shards = wrong.shards
                client.close()
            except BaseException:
                client.close()
                raise
        raise UsageError("the broker did not report its number of shards")

    def _agree(self, joined: Joined) -> bool:
        """Adopt the broker's position; returns False if another CONNECT must give up settled rows."""
        if self.part.keys:
            self._next = self._first = self.progress.settled + 1
            return True
        row = joined.sequence - self.part.base
        if row > ROWS_MAX:
            # Only from brokers that did not store names yet: others reject such a producer.
            raise LaterBatch(f"a later batch of {self.part.producer} has begun", joined.sequence)
        self.parts = joined.parts
        is_new = self.progress.begun_at < 0
        if not self.progress.join(row):
            return False
        if is_new:
            self.resumed_at = row
        if joined.check is not None and row > self._given:
            self._checks = {row: joined.check}
        self._next = self._first = row + 1
        return True

    def _wait(self, lost: ConnectionLost) -> None:
        """Wait before the next attempt; raises Unavailable when the time limit is reached."""
        pause_s = self._backoff.next()
        if monotonic() + pause_s > self._tried_until:
            raise Unavailable(f"rows could not be published for {self._options.retry_s:g} s: {lost.detail}")
        sleep(pause_s)


def _changed(detail: str) -> UsageError:
    return UsageError(
        f"{detail}: a batch that is retried must have the same partitions with the same rows in the same order",
        "set keyColumn if the number of partitions changes or the plan has no order, or another producerName if these are other "
        "rows",
    )


def _earlier(part: ProducerPart, known: int) -> UsageError:
    return UsageError(
        f"the broker has batch {known} of {part.producer}, and this is batch {part.batch}: "
        "the checkpoint is new or older, so it is unknown whether these rows were published",
        "to publish them, set another producerName, or use the checkpoint that belongs to this name; "
        "if all batches have the same rows as before, set onEarlierBatch to skip",
    )
