"""Messages of one client that follow each other in a block, which a node sends to its home together."""

from __future__ import annotations

from braidmq.lane.flows.flow import Flow
from braidmq.lane.flows.log_flow import LogFlow
from braidmq.lane.path.message import Message
from braidmq.lane.records.records import encode_record
from tests.lane.recording.published import RecordingBench


def test_a_block_says_which_messages_of_a_client_follow_each_other() -> None:
    bench = RecordingBench()
    flows = [LogFlow(name, bench.state, 10, 10, False, False) for name in ("a", "b")]
    recorder = bench.recorder
    values = [encode_record(b"t", b"%d" % number, 1, False, "a") for number in range(7)]

    def record(number: int, flow: Flow, shard: int) -> None:
        message = Message(b"t", b"%d" % number, 1, False, flow.client_id)
        recorder.record_value(message, values[number], shard, False, flow, None, 0, 0)

    record(0, flows[0], 0)
    record(1, flows[0], 0)
    record(2, flows[1], 0)  # another client
    record(3, flows[0], 0)
    record(4, flows[0], 1)  # another shard
    recorder.await_rows(Message(b"t", b"", 1, False, "a"), flows[0], None, 0, 0)
    record(5, flows[0], 1)
    record(6, flows[0], 1)
    block = recorder.take()

    assert block is not None
    found = block.runs()
    assert [(start, values) for start, values, _ in found] == [
        (0, values[0:2]), (2, values[2:3]), (3, values[3:4]), (4, values[4:5]), (5, []), (6, values[5:7]),
    ]  # fmt: skip
    assert [size for _, _, size in found] == [sum(map(len, values)) for _, values, _ in found]
