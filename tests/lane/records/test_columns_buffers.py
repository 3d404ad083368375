"""Buffers of columns are the same bytes in both forms of the lane, nulls and all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption
from braidmq.lane.records import arrow_buffers
from tests.support.plain_form import plain_form

# Where nothing was compiled both are the plain one, and agree for that reason.
FORMS = [arrow_buffers, plain_form("records.arrow_buffers")]

texts = st.text(max_size=6).map(str.encode)
KINDS: dict[str, tuple[Callable[[Any], Any], st.SearchStrategy[Any]]] = {
    "flags": (lambda form: form.Flags(), st.booleans()),
    "narrow numbers": (lambda form: form.Numbers(4), st.integers(-(2**31), 2**31 - 1)),
    "wide numbers": (lambda form: form.Numbers(8), st.integers(-(2**63), 2**63 - 1)),
    "texts": (lambda form: form.Variable(True), texts),
    "binaries": (lambda form: form.Variable(False), st.binary(max_size=6)),
    "pairs": (lambda form: form.Pairs(), st.lists(st.tuples(texts, texts), min_size=1, max_size=3)),
}


def taken(column: Any, rows: list[object]) -> tuple[int, list[bytes | None]]:
    for row, value in enumerate(rows):
        if value is not None:
            column.append(row, value)
    nulls, buffers = column.take(len(rows))
    return nulls, [None if each is None else bytes(each) for each in buffers]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_both_forms_make_the_same_bytes_for_consecutive_batches(kind: str, data: st.DataObject) -> None:
    make, values = KINDS[kind]
    rows: st.SearchStrategy[Any] = values if kind == "flags" else st.none() | values
    batches = data.draw(st.lists(st.lists(rows, max_size=40), min_size=1, max_size=3))
    compiled, plain = (make(form) for form in FORMS)

    for batch in batches:
        assert taken(compiled, batch) == taken(plain, batch)


@pytest.mark.parametrize("form", FORMS)
def test_nulls_are_bits_that_are_not_set(form: Any) -> None:
    column = form.Numbers(4)

    assert taken(column, [1, None, 2, None, None]) == (3, [b"\x05", b"".join(n.to_bytes(4, "little") for n in (1, 0, 2, 0, 0))])
    assert taken(column, [7]) == (0, [None, b"\7\0\0\0"])
    assert taken(column, [None] * 9) == (9, [b"\0\0", bytes(36)])
    assert taken(column, [3] * 9 + [None]) == (1, [b"\xff\x01", b"\3\0\0\0" * 9 + bytes(4)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [[b"\xff"], [b"ok", b"\xc3", b"\xa4"], [b"\xed\xa0\x80"]])
def test_each_text_must_be_utf8_and_binaries_need_not(form: Any, rows: list[object]) -> None:
    with pytest.raises(Corruption, match="UTF-8"):
        taken(form.Variable(True), rows)
    assert taken(form.Variable(False), rows)[1][2] == b"".join(rows)  # type: ignore[arg-type]
