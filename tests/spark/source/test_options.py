"""Options of the source: what is read, what is refused, and with which words."""

from __future__ import annotations

import logging
import pickle
import re
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.sink.options import parse_write_options
from braidmq.spark.source import foreign_options
from braidmq.spark.source.offsets import Offset
from braidmq.spark.source.options import EARLIEST, LATEST, READ_OPTIONS, Bound, parse_read_options

ROOT = Path(__file__).resolve().parents[3]


def test_options_that_are_not_given_have_their_defaults() -> None:
    options = parse_read_options({"path": "plant/#"})

    assert options.filters == ["plant/#"]
    assert options.servers == ["grpc://localhost:8815"]
    assert (options.start, options.end, options.columns) == (None, None, None)
    assert (options.rows_max, options.bytes_max, options.partitions_min) == (None, None, 0)
    assert options.fail_on_data_loss
    assert options.on_loss == "fail"
    assert not options.pushdown
    assert options.reader_name == ""
    assert not options.continues_with_other_filters
    assert (options.rows_min, options.partition_rows_max, options.partition_bytes_max) == (None, None, None)


def test_every_option_is_read_under_its_key_in_lower_case() -> None:
    given = {
        "servers": "a:1,grpc+tls://b:2",
        "topicFilter": '["plant/+/temp", "x"]',
        "startingOffsets": '{"0": 5}',
        "endingTimestamp": "2024-03-01T12:00:00Z",
        "maxRowsPerTrigger": "1000",
        "maxBytesPerTrigger": "64MiB",
        "minPartitions": "8",
        "maxRowsPerPartition": "7000",
        "maxBytesPerPartition": "8MiB",
        "onFilterChange": "continue",
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
    assert (options.partition_rows_max, options.partition_bytes_max) == (7000, 8 << 20)
    assert options.on_loss == "skip"
    assert options.continues_with_other_filters
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
        ({"topicfilter": "$share/g/a"}, "is for MQTT subscriptions only"),
        ({"topicfilter": "[1]"}, "topicFilter: .* is invalid; write one, or a JSON list"),
        ({"topicfilter": '["a"'}, "topicFilter: .* is invalid"),
        ({"topicfilter": "[]"}, "topicFilter: .* is invalid"),
        ({"topicfilter": "a", "path": "b"}, "differs from what load"),
        ({"path": "a", "startingoffsets": "soon"}, "startingOffsets: is not JSON; write earliest, latest, or JSON"),
        ({"path": "a", "startingoffsets": '{"version": 9}'}, "version 9"),
        ({"path": "a", "startingoffsets": "latest", "startingtimestamp": "-1h"}, "startingTimestamp"),
        ({"path": "a", "startingtimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a valid start; write"),
        ({"path": "a", "endingtimestamp": "-5"}, "endingTimestamp: .* has no unit"),
        ({"path": "a", "maxrowspertrigger": "0"}, "maxRowsPerTrigger: '0' is invalid; write a number of at least 1"),
        ({"path": "a", "maxbytespertrigger": "many"}, "maxBytesPerTrigger"),
        ({"path": "a", "minpartitions": "-1"}, "minPartitions"),
        ({"path": "a", "onfilterchange": "warn"}, "onFilterChange: 'warn' is invalid; write fail or continue"),
        ({"path": "a", "startingoffsets": '{"t": {"0": -2}}'}, "startingOffsets: .* without topics"),
        ({"path": "a", "failondataloss": "maybe"}, "failOnDataLoss: 'maybe' is invalid; write true or false"),
        ({"path": "a", "columns": "topic,colour"}, "columns: history has no column colour; choose from topic"),
        ({"path": "a", "columns": "topic,topic"}, "columns"),
        ({"path": "a", "timeout": "long"}, "timeout"),
        ({"path": "a", "servers": "http://a"}, "servers: http:// is not a scheme"),
        ({"path": "a", "user": "u", "token": "t"}, "user: both a token and a user are given"),
        ({"path": "a", "tls.certfile": "c"}, "tls.certFile: a client certificate needs its key"),
    ],
)
def test_an_invalid_option_is_rejected_with_its_name_and_a_remedy(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_read_options(options)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("topicfilters", "topicfilters: is not an option of braidmq; did you mean topicFilter?"),
        ("startingoffset", "did you mean startingOffsets?"),
        ("failondataloos", "did you mean failOnDataLoss?"),
        ("maxrowspertriger", "did you mean maxRowsPerTrigger?"),
        ("tls.cafiles", "did you mean tls.caFile?"),
        ("passwort", "did you mean password?"),
        ("braidmq.colour", "braidmq.colour: is not an option of braidmq; the options are columns"),
    ],
)
def test_a_misspelled_option_is_rejected_with_the_nearest_name(key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_read_options({"path": "a", key: "s3cret"})


@pytest.mark.row("K13")
@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("kafka.bootstrap.servers", "servers"),
        ("subscribe", "topicFilter"),
        ("subscribePattern", "topicFilter"),
        ("assign", "topicFilter"),
        ("startingOffsetsByTimestamp", "startingTimestamp"),
        ("startingOffsetsByTimestampStrategy", "startingTimestamp"),
        ("endingOffsetsByTimestamp", "endingTimestamp"),
        ("maxOffsetsPerTrigger", "maxRowsPerTrigger"),
        ("minOffsetsPerTrigger", "minRowsPerTrigger"),
        ("maxRecordsPerPartition", "maxRowsPerPartition"),
        ("includeHeaders", "user_properties"),
        ("kafka.group.id", "readerName"),
        ("groupIdPrefix", "readerName"),
        ("kafka.security.protocol", "user and password"),
        ("kafka.sasl.jaas.config", "user and password"),
        ("kafka.ssl.truststore.location", "tls.caFile"),
        ("kafka.fetch.max.bytes", "servers"),
        ("kafkaConsumer.pollTimeoutMs", "timeout"),
        ("fetchOffset.numRetries", "retryTimeout"),
        ("topic", "topicFilter"),
        ("brokerUrl", "servers"),
        ("username", "user"),
        ("maxFilesPerTrigger", "maxRowsPerTrigger"),
    ],
)
def test_options_of_another_source_are_refused_with_ours_in_their_place(option: str, ours: str) -> None:
    # Spark gives keys in lower case, and our prefix changes nothing.
    for key in (option, option.lower(), f"braidmq.{option}"):
        with pytest.raises(ConfigError, match=rf"{re.escape(key)}: is an option of another data source; .*\b{re.escape(ours)}\b"):
            parse_read_options({"path": "a", key: "s3cret"})


@pytest.mark.row("K13")
@pytest.mark.parametrize(
    ("option", "ours"), [("topic", "a column topic"), ("kafka.bootstrap.servers", "mqtt://"), ("kafka.acks", "servers")]
)
def test_options_of_another_sink_are_refused_with_ours_in_their_place(option: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(option)}: is an option of another data source; .*{ours}"):
        parse_write_options({option: "x"})


def test_a_batch_has_a_minimum_of_rows_and_a_delay_or_neither() -> None:
    both = parse_read_options({"path": "a", "minrowspertrigger": "500", "maxtriggerdelay": "90s"})
    alone = parse_read_options({"path": "a", "minrowspertrigger": "500"})

    assert (both.rows_min, both.delay_s) == (500, 90.0)
    assert alone.delay_s == 15 * 60
    with pytest.raises(ConfigError, match="maxTriggerDelay: needs minRowsPerTrigger"):
        parse_read_options({"path": "a", "maxtriggerdelay": "90s"})
    with pytest.raises(ConfigError, match="minRowsPerTrigger: is 5, but maxRowsPerTrigger is 4"):
        parse_read_options({"path": "a", "minrowspertrigger": "5", "maxrowspertrigger": "4"})


def test_parsing_leaves_unknown_options_alone_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Every process of a query parses the options; the driver warns of them, once."""
    with caplog.at_level(logging.WARNING, logger="braidmq.spark"):
        options = parse_read_options({"path": "a", "mergeSchema": "true", "owner": "ann", "option.servers": "b", "x": ""})

    assert options.unknown == ("mergeSchema", "x")
    assert caplog.records == []


def test_no_representation_shows_a_secret() -> None:
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


def test_the_page_for_kafka_names_what_is_refused_and_what_is_the_same() -> None:
    page = (ROOT / "docs" / "from-kafka.md").read_text()
    table = page[page.index("## Options") : page.index("## Offsets")]
    rows = re.findall(r"^\| (`[^|]+) \|([^|]*)\|", table, re.M)
    names = {name.replace("*", "x"): ours.strip() for cell, ours in rows for name in re.findall(r"`([^`]+)`", cell)}

    same = {name for name, ours in names.items() if ours == "the same"} | {"maxTriggerDelay"}
    assert same <= set(READ_OPTIONS)
    for name in set(names) - same:
        with pytest.raises(ConfigError, match="is an option of another data source"):
            parse_read_options({"path": "a", name: "x"})
    shown = {name.lower() for name in names} | {"kafka.group.id", "fetchoffset.x"}
    elsewhere = {"topics", "topicspattern", "bootstrap.servers", "group.id", "brokerurl", "clientid", "username"}
    elsewhere |= {"startingversion", "maxfilespertrigger"}
    assert {name for name in foreign_options.READ if not name.endswith(".")} <= shown | elsewhere
