"""The store of the other tests, which is in memory, answers as the real one does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.storage.engine.store import Store
from tests.support.fakes.store import FakeStore

FAMILIES = ("shard-00", "shard-01")

keys = st.binary(min_size=1, max_size=2).map(lambda key: bytes(byte % 5 for byte in key))
changes = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(FAMILIES), keys, st.binary(max_size=3)),
    st.tuples(st.just("delete"), st.sampled_from(FAMILIES), keys, st.just(b"")),
    st.tuples(st.just("delete_range"), st.sampled_from(FAMILIES), keys, keys).map(
        lambda change: (*change[:2], *sorted(change[2:]))
    ),
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(Path(tmp_path_factory.mktemp("store")) / "log", FAMILIES, durability="os")


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(batches=st.lists(st.lists(changes, max_size=8), max_size=6), lower=keys, upper=keys)
def test_the_fake_store_holds_the_same_rows_as_the_real_one(
    real: Store, batches: list[list[tuple[str, str, bytes, bytes]]], lower: bytes, upper: bytes
) -> None:
    fake = FakeStore()
    empty = real.batch()
    for family in FAMILIES:
        empty.delete_range(family, b"", b"\xff")
    real.write(empty)

    for batch in batches:
        for store in (fake, real):
            filled = store.batch()
            for kind, family, key, value in batch:
                if kind == "put":
                    filled.put(family, key, value)
                elif kind == "delete":
                    filled.delete(family, key)
                else:
                    filled.delete_range(family, key, value)
            store.write(filled)  # type: ignore[arg-type]  # each gets the batch that it made

    for family in FAMILIES:
        assert list(fake.items(family, lower, upper)) == list(real.items(family, lower, upper))
        assert list(fake.items(family, b"", b"\xff")) == list(real.items(family, b"", b"\xff"))
        assert fake.get(family, lower) == real.get(family, lower)
