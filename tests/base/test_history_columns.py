"""One table of columns: every side has exactly its columns."""

from __future__ import annotations

from braidmq.base.history_columns import BY_NAME, COLUMNS
from braidmq.control.history import RecordLine
from braidmq.flight.columns import SCHEMA
from braidmq.lane.records import columns as lane
from braidmq.mqtt.properties import Properties


def test_no_column_name_occurs_twice() -> None:
    assert len(BY_NAME) == len(COLUMNS)


def test_the_lane_fills_every_column_that_is_not_constant() -> None:
    assert {column.source for column in COLUMNS} - {None} == {*lane.NAMES} - {"size"}


def test_flight_has_the_columns_in_their_order() -> None:
    assert SCHEMA.names == [column.name for column in COLUMNS]


def test_each_field_of_a_line_is_a_column_and_each_column_is_in_the_line() -> None:
    fields = {column.line for column in COLUMNS if "." not in column.line}
    properties = {column.line.partition(".")[2] for column in COLUMNS if "." in column.line}

    assert fields == {*RecordLine.__struct_fields__} - {"encoding", "properties"}
    assert properties <= {*Properties.__struct_fields__}
