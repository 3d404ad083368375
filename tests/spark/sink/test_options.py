"""Options and columns of the sink: what is understood, and what is refused in words."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from braidmq.base.errors import ConfigError, UsageError
from braidmq.spark.option_table import CONNECTION_OPTIONS, OptionTable
from braidmq.spark.sink.columns import check_columns
from braidmq.spark.sink.options import Server, parse_write_options
from braidmq.spark.sink.writer import make_writer

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "strings": ArrayType(StringType()),
    "counts": MapType(StringType(), IntegerType()),
}


def schema(text: str) -> StructType:
    """A schema of columns written as name and type; without a session, which Spark's own parser needs."""
    columns = [each.split() for each in text.split(",")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("mqtt://a:1", [Server("a", 1, False)]),
        ("a", [Server("a", 1883, False)]),
        ("mqtts://a", [Server("a", 8883, True)]),
        ("a:7, mqtts://[::1]:9 ,a:7", [Server("a", 7, False), Server("::1", 9, True)]),
        ("mqtt://a:1/", [Server("a", 1, False)]),
    ],
)
def test_servers_are_addresses_of_mqtt(text: str, servers: list[Server]) -> None:
    assert parse_write_options({"servers": text}).servers == servers


@pytest.mark.parametrize("text", ["grpc://a:1", "http://a", "a:b", "a:0", "::1", "mqtt://", "mqtt://user:secret@a", ","])
def test_an_invalid_address_is_rejected_without_repeating_a_password(text: str) -> None:
    with pytest.raises(ConfigError, match="servers") as caught:
        parse_write_options({"servers": text})

    assert "secret" not in str(caught.value)


def test_options_that_ask_for_tls_make_an_address_without_a_scheme_one_of_tls() -> None:
    assert parse_write_options({"servers": "a", "tls.cafile": "ca.pem"}).servers == [Server("a", 8883, True)]
    assert parse_write_options({"servers": "mqtt://a", "tls": "true"}).servers == [Server("a", 1883, False)]


def test_a_path_for_dead_letters_is_enough_to_want_them() -> None:
    assert parse_write_options({}).dead_letter_path == ""
    assert parse_write_options({"deadletterpath": "/x"}).dead_letter_path == "/x"
    assert parse_write_options({"deadletterpath": "/x", "onrefused": "fail"}).dead_letter_path == ""
    with pytest.raises(ConfigError, match="deadLetterPath"):
        parse_write_options({"onrefused": "deadLetter"})


@pytest.mark.parametrize(
    "options",
    [
        {"qos": "3"},
        {"maxinflight": "0"},
        {"password": "secret"},
        {"tls.certfile": "x"},
        {"onpartitionchange": "hide"},
        {"onearlierbatch": "publish"},
        {"producername": "x" * 201},
        {"keycolum": "id"},
    ],
)
def test_an_option_that_does_not_fit_is_refused_by_name(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_write_options(options)

    assert caught.value.key
    assert "secret" not in str(caught.value)


def test_no_text_of_the_options_shows_the_password() -> None:
    options = parse_write_options({"user": "u", "password": "secret"})

    assert "secret" not in repr(options)
    assert options.password == "secret"


def test_a_frame_that_was_read_can_be_written() -> None:
    from braidmq.spark.source.schema import struct_of

    places = check_columns(struct_of(None), "")

    assert set(places) >= {"topic", "payload", "qos", "retain", "user_properties", "expires_at"}
    assert not {"client_id", "shard", "position", "store_timestamp", "publish_timestamp"} & set(places)


def test_columns_are_found_in_any_case_and_texts_do_for_payloads() -> None:
    assert check_columns(schema("Topic string, PAYLOAD string, qos long"), "") == {"topic": 0, "payload": 1, "qos": 2}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("payload string", "no column topic"),
        ("topic string", "no column payload"),
        ("id int", "no column topic and no column payload"),
        ("topic string, payload binary, colour string, size int", "colour, size"),
        ("topic int, payload binary", "the column topic is int"),
        ("topic string, payload double", "the column payload is double"),
        ("topic string, payload binary, user_properties strings", "user_properties is array<string>"),
        ("topic string, payload binary, user_properties counts", "user_properties is map"),
        ("topic string, payload binary, retain int", "the column retain is int"),
    ],
)
def test_columns_that_do_not_fit_are_rejected_with_a_clear_message(columns: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_columns(schema(columns), "")


def test_the_key_may_be_a_separate_column_or_a_column_of_the_message() -> None:
    assert check_columns(schema("id long, topic string, payload binary"), "ID")["key"] == 0
    assert check_columns(schema("topic string, payload binary"), "topic") == {"key": 0, "topic": 0, "payload": 1}
    with pytest.raises(ConfigError, match="there is no column id"):
        check_columns(schema("topic string, payload binary"), "id")
    with pytest.raises(ConfigError, match="cast it"):
        check_columns(schema("topic string, payload binary, id double"), "id")


def test_overwriting_is_rejected_with_a_clear_message() -> None:
    with pytest.raises(UsageError, match="cannot be taken back"):
        make_writer({}, schema("topic string, payload binary"), True)


def test_a_printed_credentials_object_shows_no_password() -> None:
    table = OptionTable({"user": "ann", "password": "s3cret"}, CONNECTION_OPTIONS, {})

    assert "s3cret" not in repr(table.security())
    assert table.security().__rich_repr__() == [("user", "ann")]
