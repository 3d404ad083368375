"""What an operator is told of the cores of a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from braidmq.cluster.administration.several_status import describe_cores
from braidmq.cluster.corestore.contract import CoreRow, TableRows
from braidmq.cluster.membership.cluster_view import ClusterView
from braidmq.cluster.membership.members import MEMBERS, MemberRow
from braidmq.cluster.membership.shard_map import CORES, TERMS, CoreEntryRow, TermRow, deal, shard_key
from braidmq.control.cluster import CoreInfo


def rows(found: dict[bytes, msgspec.Struct]) -> TableRows:
    return TableRows(1, {key: CoreRow(msgspec.msgpack.encode(row), 1) for key, row in found.items()})


def test_cores_are_shown_with_their_shards_terms_and_states() -> None:
    view = ClusterView()
    view.load(
        {
            MEMBERS: rows({name: MemberRow(1, 7, b"", "core") for name in (b"core1", b"core2", b"core3")}),
            CORES: rows({b"core2": CoreEntryRow("10.0.0.2:4370")}),
            TERMS: rows({shard_key(1): TermRow(5, "core2", 7)}),
        }
    )
    found = deal(b"l" * 16, ["core1", "core2", "core3", "core4"], 5)
    several: Any = SimpleNamespace(
        view=view, map=found, others=["core2", "core3", "core4"], membership=SimpleNamespace(check=lambda: False)
    )
    side: Any = SimpleNamespace(links=SimpleNamespace(connected=["core2"]))

    assert describe_cores(several, side) == [
        CoreInfo(name="core1", state="alone", incarnation=7, address="", terms={0: 0, 4: 0}),
        CoreInfo(name="core2", state="serving", incarnation=7, address="10.0.0.2:4370", terms={1: 5}),
        CoreInfo(name="core3", state="away", incarnation=7, address="", terms={2: 0}),
        CoreInfo(name="core4", state="dead", incarnation=0, address="", terms={3: 0}),
    ]
