"""``braidmq ctl cluster`` against a node of the tests: shards, and nodes that join and leave."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable

from braidmq.control.cluster import DrainRequest, DrainStatus, MemberInfo
from tests.support.api_node import ApiNode

Ctl = Callable[..., tuple[int, str, str]]


def test_shards_are_listed_with_their_cores(node: ApiNode, ctl: Ctl) -> None:
    _, output, _ = ctl("cluster", "shards")
    _, document, _ = ctl("cluster", "shards", "--json")

    assert output.splitlines()[0].split() == ["SHARD", "CORE", "STATE", "TERM"]
    assert output.splitlines()[2].split() == ["1", "core1", "serving", "3"]
    assert json.loads(document)[1] == {"shard": 1, "core": "core1", "state": "serving", "term": 3}


def test_the_configuration_of_a_new_replicant_is_printed(node: ApiNode, ctl: Ctl) -> None:
    exit_code, output, _ = ctl("cluster", "join", "r2")
    parsed = tomllib.loads(output)

    assert exit_code == 0
    assert parsed == {
        "node": {"name": "r2", "cluster": "plant", "role": "replicant"},
        "cluster": {"core_nodes": ["10.0.0.1:4370"], "secret": "..."},
    }
    assert "cert_file" in output
    assert json.loads(ctl("cluster", "join", "r2", "--json")[1])["needs_secret"]


def test_a_core_cannot_join(node: ApiNode, ctl: Ctl) -> None:
    exit_code, _, errors = ctl("cluster", "join", "core2", "--core")

    assert exit_code == 1
    assert "the cores of this cluster are fixed" in errors


def test_a_node_that_leaves_is_drained_first(node: ApiNode, ctl: Ctl) -> None:
    node.operations.member_list = [MemberInfo(name="r1", role="replicant", state="serving", incarnation=7)]
    node.operations.drain_steps = [
        DrainStatus(node="r1", is_done=False, moved=0, left=3),
        DrainStatus(node="r1", is_done=True, moved=3, left=0),
    ]

    exit_code, output, _ = ctl("cluster", "leave", "r1", "--rate", "7")

    assert exit_code == 0
    assert output == "r1: 0 clients sent away, 3 left\nr1 has left: 3 clients were sent away\n"
    assert node.operations.drain_asked == DrainRequest(node="r1", rate=7)
    assert node.operations.member_list == []


def test_a_core_that_leads_shards_cannot_leave(node: ApiNode, ctl: Ctl) -> None:
    exit_code, _, errors = ctl("cluster", "leave", "core1")

    assert exit_code == 1
    assert "leads shard 0" in errors
