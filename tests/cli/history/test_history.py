"""``braidmq history`` against the API over a real Unix socket."""

from __future__ import annotations

import csv
import gc
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from braidmq.base.errors import Corruption, UsageError
from braidmq.cli.history import formats
from braidmq.cli.main import main
from braidmq.control import history as api
from tests.support.api_node import ApiNode

History = Callable[..., tuple[int, str, str]]
AT = 1_700_000_000_000_001  # 2023-11-14T22:13:20.000001Z


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ApiNode]:
    with ApiNode(tmp_path) as node:
        yield node


@pytest.fixture
def history(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> History:
    """Run a command; gives exit status, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["history", "--data-dir", str(tmp_path), *arguments])
        sys.stdout.flush()
        captured = capfdbinary.readouterr()
        return int(ended.value.code or 0), captured.out.decode(), captured.err.decode()

    return run


def record(payload: str = "21.5", **fields: Any) -> api.RecordLine:
    known = {"shard": 2, "timestamp": AT, "topic": "room/t", "encoding": "utf-8", "qos": 1, "retain": False, "client_id": "s1",
             "published_at": AT}  # fmt: skip
    return api.RecordLine(payload=payload, **{**known, **fields})


def answer(node: ApiNode, *lines: api.StreamLine) -> None:
    node.operations.history.lines = [api.Begin(start=AT, end=AT + 10), *lines, api.End(records=len(lines))]


RECORDS = [
    record(),
    record("/wA=", encoding="base64", timestamp=AT + 1, published_at=AT - 5, topic="a,b\n", retain=True, qos=2),
    record('"\r\n,', timestamp=AT + 2, expires_at=AT + 9, client_id="", properties={"user_properties": [["k", "ü"]]}),
]


def test_cat_writes_a_json_object_for_each_record(node: ApiNode, history: History) -> None:
    answer(node, *RECORDS)

    exit_code, output, _ = history("cat", "room/#")

    rows = [json.loads(line) for line in output.splitlines()]
    assert exit_code == 0
    assert rows[0] == {
        "time": "2023-11-14T22:13:20.000001Z", "topic": "room/t", "payload": "21.5", "encoding": "utf-8", "qos": 1,
        "retain": False, "client_id": "s1", "shard": 2, "timestamp": AT, "published_at": AT,
    }  # fmt: skip
    assert (rows[1]["payload"], rows[1]["encoding"]) == ("/wA=", "base64")
    assert (rows[2]["expires_at"], rows[2]["properties"]) == (AT + 9, {"user_properties": [["k", "ü"]]})


def test_cat_requests_what_its_options_say(node: ApiNode, history: History) -> None:
    answer(node)

    history("cat", "a/#", "b", "--from", "-24h", "--to", "2024-03-01T12:00:00Z", "--limit", "7")
    history("cat", "#")

    assert node.operations.history.asked == [
        api.ReadRequest(filters=("a/#", "b"), start="-24h", end="2024-03-01T12:00:00Z", limit=7),
        api.ReadRequest(filters=("#",), start="earliest", end="latest"),
    ]


def test_csv_can_be_read_back(node: ApiNode, history: History, tmp_path: Path) -> None:
    answer(node, *RECORDS)
    file = tmp_path / "out.csv"

    history("cat", "#", "--format", "csv", "-o", str(file))
    _, output, _ = history("cat", "#", "--format", "csv")

    rows = list(csv.DictReader(io.StringIO(output, newline="")))
    assert [(row["topic"], row["payload"]) for row in rows] == [(each.topic, each.payload) for each in RECORDS]
    assert [row["expires_at"] for row in rows] == ["", "", str(AT + 9)]
    assert json.loads(rows[2]["properties"]) == RECORDS[2].properties
    assert file.read_bytes().decode() == output


def test_parquet_has_bytes_and_times(node: ApiNode, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_BATCH_RECORDS", 2)
    answer(node, *RECORDS)
    file = tmp_path / "out.parquet"

    exit_code, output, errors = history("cat", "#", "--format", "parquet", "-o", str(file))

    table = pyarrow.parquet.read_table(file)
    assert (exit_code, output) == (0, "")
    assert errors == f"3 records written to {file}\n"
    assert table["payload"].to_pylist() == [b"21.5", b"\xff\x00", b'"\r\n,']
    assert table["store_timestamp"].to_pylist()[0] == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)
    assert [None if each is None else each.microsecond for each in table["expires_at"].to_pylist()] == [None, None, 10]
    assert table["retain"].to_pylist() == [False, True, False]


def test_parquet_without_a_file_or_without_pyarrow_is_refused_before_anything_is_read(
    node: ApiNode, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_file = history("cat", "#", "--format", "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    no_pyarrow = history("cat", "#", "--format", "parquet", "-o", str(tmp_path / "x"))

    assert no_file == (1, "", "braidmq history: Parquet output needs --output FILE\n")
    assert no_pyarrow == (1, "", "braidmq history: Parquet files need pyarrow: install braidmq[history]\n")
    assert node.operations.history.asked == []


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_a_failure_leaves_standard_output_usable(node: ApiNode, history: History, format_: str) -> None:
    node.operations.history.lines = [record(), Corruption("a record is truncated")]

    exit_code, output, errors = history("cat", "#", "--format", format_)

    assert (exit_code, errors) == (1, "braidmq history: a record is truncated\n")
    assert "21.5" in output
    assert not sys.stdout.buffer.closed


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([record(), Corruption("a record is truncated")], "a record is truncated"),
        ([record()], "ended its answer early"),
    ],
    ids=["failed", "cut off"],
)
@pytest.mark.parametrize("format_", ["json", "csv", "parquet"])
def test_an_incomplete_answer_is_an_error_and_leaves_no_file(
    node: ApiNode,
    history: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[Any],
    words: str,
    format_: str,
) -> None:
    monkeypatch.setattr(formats, "_BATCH_RECORDS", 1)
    node.operations.history.lines = lines
    folder = tmp_path / "out"
    folder.mkdir()

    exit_code, _, errors = history("cat", "#", "--format", format_, "-o", str(folder / "x"))
    gc.collect()

    assert exit_code == 1
    assert words in errors
    assert errors.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_a_rejected_request_is_reported_in_one_line(node: ApiNode, history: History) -> None:
    node.operations.history.refusal = UsageError("'x' is not a valid start", "write latest")

    assert history("cat", "#", "--from", "x") == (1, "", "braidmq history: 'x' is not a valid start: write latest\n")


def test_a_gap_is_reported_beside_the_records(node: ApiNode, history: History) -> None:
    answer(node, api.GapLine(shard=1, after=5, floor=AT), record())

    for command in ("cat", "tail"):
        exit_code, output, errors = history(command, "#")

        assert exit_code == 0
        assert len(output.splitlines()) == 1
        assert "retention has removed the records of shard 1 from before 2023-11-14T22:13:20.000001Z" in errors


def test_tail_prints_time_topic_and_payload(node: ApiNode, history: History) -> None:
    answer(node, *RECORDS, record("\x1b[2J", topic="evil\x07"))

    _, output, _ = history("tail", "room/#", "x", "--from", "-5m", "-C", "4")

    assert output.splitlines()[0] == "2023-11-14T22:13:20.000001Z room/t 21.5"
    assert output.splitlines()[1].endswith(" a,b\\n base64:/wA=")
    assert "\x1b" not in output
    assert "\x07" not in output
    assert node.operations.history.asked == [api.ReadRequest(filters=("room/#", "x"), start="-5m", limit=4, follow=True)]


def test_tail_in_json_prints_what_cat_does(node: ApiNode, history: History) -> None:
    answer(node, *RECORDS)

    assert history("tail", "#", "--json") == history("cat", "#")


def test_ls_counts_the_last_hour_by_topic(node: ApiNode, history: History) -> None:
    newest = int((time.time() - 65) * 1e6)
    answer(node, api.Topic(topic="a/1", records=3, payload_bytes=2048, newest=newest))

    _, output, _ = history("ls")

    assert output.splitlines()[1].split() == ["a/1", "3", "2.0", "KiB", "1", "m", "5", "s", "ago"]
    assert node.operations.history.asked_topics == [api.ReadRequest(filters=("#",), start="-1h")]


def test_ls_says_when_there_are_more_topics_or_none(node: ApiNode, history: History) -> None:
    node.operations.history.lines = [api.Begin(start=1, end=2), api.End(is_cut=True)]
    _, _, more = history("ls", "a/#", "--from", "earliest")
    answer(node)
    _, output, _ = history("ls", "a/#")

    assert "use a narrower filter" in more
    assert output == "no records since -1h\n"


def test_stats_show_shards_and_readers(node: ApiNode, history: History) -> None:
    shard = api.ShardInfo(
        shard=0, records=5, size_bytes=1024**2, epochs=2, generations=1, oldest=AT, newest=AT + 1, floor=0
    )  # fmt: skip
    empty = api.ShardInfo(shard=1, records=0, size_bytes=0, epochs=0, generations=0, oldest=0, newest=0, floor=0)
    reader = api.ReaderInfo(name="spark", records_behind=7, lag_s=61.0, pins=True, user="ann", filters=["a/#"])
    wide = api.ReaderInfo(
        name="wide", records_behind=900, lag_s=0.0, pins=False, filters=["a", "b", "c", "d", "e"], is_estimate=True
    )
    unread = api.ReaderInfo(
        name="unread", records_behind=900, lag_s=0.0, pins=False, filters=["x"], is_estimate=True, is_upper_bound=True
    )
    node.operations.history.stats_answer = api.HistoryStats(
        log_id="ab12", records=5, size_bytes=1024**2, shards=[shard, empty], readers=[reader, wide, unread], readers_more=3
    )

    _, output, errors = history("stats")

    lines = [line.split() for line in output.splitlines()]
    assert ["log", "id", "ab12"] in lines
    assert ["oldest", "2023-11-14T22:13:20.000001Z"] in lines
    assert ["1", "0", "0", "B", "0", "0", "-", "-"] in lines
    assert ["spark", "ann", "a/#", "7", "1", "m", "1", "s", "yes"] in lines
    assert ["wide", "-", "a", "b", "c", "and", "2", "more", "~900", "0", "s", "no"] in lines
    assert ["unread", "-", "x", "at", "most", "900", "0", "s", "no"] in lines
    assert "3 more readers" in errors


def test_generations_are_listed_and_relearning_says_what_it_did(node: ApiNode, history: History) -> None:
    generation = api.GenerationInfo(
        shard=1, number=2, layout="learned", parameters="100,10", first_epoch=AT, records=9, size_bytes=100
    )
    node.operations.history.generation_list = [generation]

    _, listed, _ = history("generations")
    _, kept, _ = history("relearn")
    node.operations.history.relearned = api.Relearned(is_begun=True, reason="3 keys for each record become 1")
    _, begun, _ = history("relearn")

    assert listed.splitlines()[1].split() == ["1", "2", "learned", "100,10", "2023-11-14T22:13:20.000001Z", "9", "100", "B"]
    assert kept == "nothing was changed: the patterns are as good as they get\n"
    assert begun == "started a new generation: 3 keys for each record become 1\n"


def test_forgetting_readers_stops_at_the_first_unknown_name(node: ApiNode, history: History) -> None:
    status, output, errors = history("forget", "nightly", "nobody", "later")

    assert node.operations.history.forgotten == ["nightly", "nobody"]
    assert output == "forgot nightly\n"
    assert (status, "there is no reader 'nobody'" in errors) == (1, True)


def test_patterns_are_listed_with_the_number_of_shards_that_have_them(node: ApiNode, history: History) -> None:
    node.operations.history.pattern_list = [
        api.ShardPatterns(shard=0, patterns=["plant/+/temp", "x"]),
        api.ShardPatterns(shard=1, patterns=["plant/+/temp"]),
    ]

    _, output, _ = history("patterns")

    assert [line.split() for line in output.splitlines()[1:]] == [["plant/+/temp", "2"], ["x", "1"]]


def test_a_generation_is_begun_with_the_patterns_of_a_file(node: ApiNode, history: History, tmp_path: Path) -> None:
    file = tmp_path / "patterns"
    file.write_text("// by hand\nplant/+/temp\n\n  plant/+/alarm \n")

    history("relearn", "--patterns", str(file), "--thresholds", "5,3")
    lonely, _, said = history("relearn", "--thresholds", "5")
    wrong, _, _ = history("relearn", "--patterns", str(file), "--thresholds", "five")

    assert node.operations.history.asked_relearns == [
        api.RelearnRequest(patterns=("plant/+/temp", "plant/+/alarm"), thresholds=(5, 3))
    ]
    assert (lonely, wrong) == (2, 2)
    assert "--patterns" in said
