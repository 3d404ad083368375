"""Seek or step: both forms pass the same indexes in the same way, and miss no match."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.lane.records import seek
from braidmq.lane.records.topic_index import MaskQuery
from tests.support.plain_form import plain_form

pytestmark = pytest.mark.smoke

# Where nothing was compiled both are the plain one, and agree for that reason.
FORMS = [seek, plain_form("records.seek")]
INDEXES = st.lists(st.binary(min_size=2, max_size=2), max_size=200).map(sorted)


class Listed:
    """A query that is no mask: these indexes alone."""

    def __init__(self, indexes: list[bytes]) -> None:
        self._indexes = sorted(indexes)

    def matches(self, index: bytes) -> bool:
        return index in self._indexes

    def ratchet(self, index: bytes) -> bytes | None:
        return next((each for each in self._indexes if each >= index), None)


def _check(form: ModuleType, indexes: list[bytes], query: Listed | MaskQuery) -> None:
    taken = []
    steps = form.Seek(query)
    sought = b""
    for index in indexes:
        if index < sought:
            continue
        match steps.examine(index):
            case form.TAKE:
                taken.append(index)
            case form.FAR:
                sought = steps.target
                steps = form.Seek(query)
            case form.ENDED:
                break

    assert taken == [index for index in indexes if query.matches(index)]


@pytest.mark.parametrize("form", FORMS)
@given(indexes=INDEXES, wanted=st.lists(st.binary(min_size=2, max_size=2), max_size=5))
def test_only_listed_indexes_match(form: ModuleType, indexes: list[bytes], wanted: list[bytes]) -> None:
    _check(form, indexes, Listed(wanted))


@pytest.mark.parametrize("form", FORMS)
@given(indexes=INDEXES, mask=st.binary(min_size=2, max_size=2), pattern=st.binary(min_size=2, max_size=2))
def test_only_indexes_under_the_mask_match(form: ModuleType, indexes: list[bytes], mask: bytes, pattern: bytes) -> None:
    _check(form, indexes, MaskQuery(bytes(a & b for a, b in zip(mask, pattern, strict=True)), mask))


@pytest.mark.parametrize("form", FORMS)
def test_a_scan_seeks_to_a_distant_match(form: ModuleType) -> None:
    steps = form.Seek(Listed([b"zz"]))

    verdicts = [steps.examine(b"a%c" % number) for number in range(33)]

    assert verdicts == [form.SKIP] * 32 + [form.FAR]
    assert steps.target == b"zz"
    assert steps.is_ahead(b"zy")
    assert not steps.is_ahead(b"zz")
