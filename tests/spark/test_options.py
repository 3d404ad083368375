"""Options of the source: what is read, what is refused, and with which words."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.offsets import Offset
from braidmq.spark.options import EARLIEST, LATEST, READ_OPTIONS, Bound, parse_read_options

ROOT = Path(__file__).resolve().parent.parent.parent


def test_what_is_not_given_has_its_usual_value() -> None:
    options = parse_read_options({"path": "plant/#"})

    assert options.filters == ["plant/#"]
    assert options.servers == ["grpc://localhost:8815"]
    assert (options.start, options.end, options.columns) == (None, None, None)
    assert (options.rows_max, options.bytes_max, options.partitions_min) == (None, None, 0)
    assert options.fail_on_data_loss
    assert options.on_loss == "fail"
    assert not options.pushdown
    assert options.reader_name == ""


def test_every_option_is_read_under_its_key_in_lower_case() -> None:
    given = {
        "servers": "a:1,grpc+tls://b:2",
        "topicFilter": '["plant/+/temp", "x"]',
        "startingOffsets": '{"0": 5}',
        "endingTimestamp": "2024-03-01T12:00:00Z",
        "maxRowsPerTrigger": "1000",
        "maxBytesPerTrigger": "64MiB",
        "minPartitions": "8",
        "failOnDataLoss": "False",
        "columns": "topic, payload",
        "readerName": "nightly",
        "pushdown": "TRUE",
        "user": "ann",
        "password": " pw with space ",
        "tls.caFile": "/ca.pem",
        "tls.serverName": "h.example",
        "timeout": "5s",
        "retryTimeout": "500ms",
    }

    options = parse_read_options({key.lower(): value for key, value in given.items()})

    assert options.servers == ["grpc+tls://a:1", "grpc+tls://b:2"]
    assert options.filters == ["plant/+/temp", "x"]
    assert options.start == Bound(offset=Offset({0: 5}))
    assert options.end == Bound(moment="2024-03-01T12:00:00Z")
    assert (options.rows_max, options.bytes_max, options.partitions_min) == (1000, 64 << 20, 8)
    assert options.on_loss == "skip"
    assert options.columns == ["topic", "payload"]
    assert options.pushdown
    assert (options.access.user, options.access.password) == ("ann", " pw with space ")
    assert (options.access.ca_file, options.access.server_name, options.access.reader) == ("/ca.pem", "h.example", "nightly")
    assert (options.call_s, options.retry_s) == (5.0, 0.5)


@pytest.mark.parametrize("text", ["earliest", "Earliest", "EARLIEST"])
def test_words_for_offsets_are_read_in_any_case(text: str) -> None:
    assert parse_read_options({"path": "a", "startingoffsets": text}).start == EARLIEST
    assert parse_read_options({"path": "a", "endingoffsets": "latest"}).end == LATEST


def test_several_paths_and_lists_of_columns_are_json() -> None:
    options = parse_read_options({"paths": '["a/#", "b"]', "columns": '["topic"]'})

    assert (options.filters, options.columns) == (["a/#", "b"], ["topic"])


def test_options_may_have_our_prefix() -> None:
    assert parse_read_options({"braidmq.topicfilter": "a", "braidmq.minpartitions": "3"}).partitions_min == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "topicFilter: is not given; .*options of CREATE TABLE do not reach"),
        ({"topicfilter": "a/#/b"}, "topicFilter: 'a/#/b' is not a topic filter: # is not the whole last level"),
        ({"topicfilter": "$share/g/a"}, "is for MQTT clients"),
        ({"topicfilter": "[1]"}, "topicFilter: .* does not fit; write one, or a JSON list"),
        ({"topicfilter": '["a"'}, "topicFilter: .* does not fit"),
        ({"topicfilter": "[]"}, "topicFilter: .* does not fit"),
        ({"topicfilter": "a", "path": "b"}, "differs from what load"),
        ({"path": "a", "startingoffsets": "soon"}, "startingOffsets: is not JSON; write earliest, latest, or JSON"),
        ({"path": "a", "startingoffsets": '{"version": 9}'}, "version 9"),
        ({"path": "a", "startingoffsets": "latest", "startingtimestamp": "-1h"}, "startingTimestamp"),
        ({"path": "a", "startingtimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a start; write"),
        ({"path": "a", "endingtimestamp": "-5"}, "endingTimestamp: .* has no unit"),
        ({"path": "a", "maxrowspertrigger": "0"}, "maxRowsPerTrigger: '0' does not fit; write a number of at least 1"),
        ({"path": "a", "maxbytespertrigger": "many"}, "maxBytesPerTrigger"),
        ({"path": "a", "minpartitions": "-1"}, "minPartitions"),
        ({"path": "a", "failondataloss": "maybe"}, "failOnDataLoss: 'maybe' does not fit; write true or false"),
        ({"path": "a", "columns": "topic,colour"}, "columns: history has no column colour; choose from topic"),
        ({"path": "a", "columns": "topic,topic"}, "columns"),
        ({"path": "a", "timeout": "long"}, "timeout"),
        ({"path": "a", "servers": "http://a"}, "servers: http:// is no scheme"),
        ({"path": "a", "user": "u", "token": "t"}, "user: there are a token and a user"),
        ({"path": "a", "tls.certfile": "c"}, "tls.certFile: a client certificate needs its key"),
    ],
)
def test_what_cannot_be_is_refused_with_the_option_and_the_remedy(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_read_options(options)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("topicfilters", "topicfilters: is no option of braidmq; did you mean topicFilter?"),
        ("startingoffset", "did you mean startingOffsets?"),
        ("failondataloos", "did you mean failOnDataLoss?"),
        ("maxrowspertriger", "did you mean maxRowsPerTrigger?"),
        ("tls.cafiles", "did you mean tls.caFile?"),
        ("passwort", "did you mean password?"),
        ("braidmq.colour", "braidmq.colour: is no option of braidmq; there are columns"),
    ],
)
def test_a_slip_of_the_pen_is_refused_with_the_nearest_name(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_read_options({"path": "a", key: "s3cret"})


def test_an_option_of_somebody_else_is_left_alone_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        parse_read_options({"path": "a", "mergeSchema": "true", "owner": "ann", "option.servers": "b"})

    assert [record.getMessage() for record in caplog.records] == [
        "the option mergeSchema is none of braidmq's, and is left alone"
    ]


def test_no_text_has_a_secret() -> None:
    given = {"path": "a", "user": "ann", "password": "s3cret"}

    options = parse_read_options(given)

    assert "s3cret" not in repr(options) + str(options)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(ConfigError) as caught:
        parse_read_options(given | {"braidmq.password": "0ther"})
    assert "s3cret" not in str(caught.value)
    assert "0ther" not in str(caught.value)


def test_the_page_describes_every_option_and_no_other() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    table = page[page.index("## Options of the source") : page.index("## Offsets")]

    described = re.findall(r"^\| `([A-Za-z.]+)`", table, re.M)

    assert sorted(described) == sorted(READ_OPTIONS)
