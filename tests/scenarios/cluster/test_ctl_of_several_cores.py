"""What an operator sees and does on any core of several, by the command line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from braidmq.base.shards import shard_of
from braidmq.cluster.membership.shard_map import SHARDS_OF_NEW_CLUSTER
from braidmq.mqtt.packets import Disconnect
from tests.scenarios.cluster.cluster import NodeProcess
from tests.scenarios.cluster.several_cores import CoresOfProcesses
from tests.support import command
from tests.support.clients.wire import Wire

pytestmark = [pytest.mark.needs("etcd"), pytest.mark.timeout(180)]

CLUSTER: dict[str, object] = {"lease": "3s", "home_wait": "6s"}


class Operator:
    """At one core."""

    def __init__(self, folder: Path, core: NodeProcess) -> None:
        self._data_dir = folder / core.name

    def run(self, *arguments: str) -> command.Ended:
        """How ``braidmq ctl`` ends."""
        return command.run("ctl", "--data-dir", str(self._data_dir), *arguments)

    def ask(self, *arguments: str) -> Any:
        """What it answers."""
        ended = self.run(*arguments, "--json")
        assert ended.exit_code == 0, ended.errors
        return msgspec.json.decode(ended.output)

    def names(self, *arguments: str, key: str = "client_id") -> list[str]:
        """The names in a list of which all parts were found."""
        page = self.ask(*arguments)
        assert page["silent"] == {}
        return [item[key] for item in page["items"]]


@contextmanager
def cores_in(folder: Path) -> Iterator[tuple[CoresOfProcesses, list[Operator]]]:
    """Two cores, each with a worker, and a replicant."""
    with CoresOfProcesses(folder, 1, cores=2, cluster=CLUSTER) as cluster:
        yield cluster, [Operator(folder, core) for core in cluster.cores]


def at_home(core: int, count: int, stem: str = "c", cores: int = 2) -> list[str]:
    """Client ids whose home is this core, 1 or 2; shards go round the cores in turn."""
    names = (f"{stem}{number}" for number in itertools.count())
    homed = (name for name in names if shard_of(name, SHARDS_OF_NEW_CLUSTER) % cores == core - 1)
    return sorted(itertools.islice(homed, count))


def leave_session(node: NodeProcess, client_id: str, *filters: str) -> None:
    """A durable session without a client."""
    with node.client(client_id, persistent=True) as wire:
        wire.subscribe(*filters, qos=1)
        wire.disconnect()


def test_every_core_lists_the_sessions_and_messages_of_all_cores(tmp_path: Path) -> None:
    with cores_in(tmp_path) as (cluster, operators):
        node = cluster.replicants[0]
        away = [at_home(1, 1, "away")[0], at_home(2, 1, "away")[0]]
        here = [at_home(1, 1, "here")[0], at_home(2, 1, "here")[0]]
        writers = [at_home(1, 1, "writer")[0], at_home(2, 1, "writer")[0]]
        for client_id in away:
            leave_session(node, client_id, "t/#")
        readers = [node.client(client_id) for client_id in here]
        for reader in readers:
            reader.subscribe("t/#", qos=0)
        for number, client_id in enumerate(writers):
            with node.client(client_id) as wire:
                for _ in range(number + 1):
                    wire.publish("t/1", b"m", 1)
                wire.publish(f"kept/{number}", b"m", 1, retain=True)

        for operator in operators:
            assert operator.names("clients", "ls", "--all") == sorted([*away, *here])
            assert operator.names("sessions", "ls", "--all") == sorted([*away, *here])
            assert operator.names("subscriptions", "ls") == sorted([*away, *here])
            assert operator.names("retained", "ls", "--contains", "kept/", key="topic") == ["kept/0", "kept/1"]
            first = operator.ask("sessions", "ls", "--limit", "3")
            assert [each["client_id"] for each in first["items"]] == sorted([*away, *here])[:3]
            assert first["cursor"]
            behind = {each["client_id"]: each["records_behind"] for each in operator.ask("sessions", "ls")["items"]}
            # Five records: three for them, and those that retained messages have.
            assert [behind[client_id] for client_id in away] == [5, 5]
            shown = operator.ask("sessions", "show", away[0])
            assert (shown["session"]["records_behind"], shown["session"]["connected"]) == (5, False)
            assert shown["session"]["oldest_at"] is not None
            assert operator.ask("topics", "ls")["items"] == [{"topic_filter": "t/#", "subscribers": 4}]
            status = operator.ask("status")
            assert (status["connections"], status["sessions"]) == (2, 4)

        assert operators[0].run("retained", "rm", "kept/1").exit_code == 0
        assert operators[1].run("retained", "rm", "kept/0").exit_code == 0
        assert operators[0].names("retained", "ls", "--contains", "kept/", key="topic") == []
        assert operators[0].run("retained", "rm", "kept/1").exit_code == 1
        assert operators[0].run("sessions", "drop", away[1]).exit_code == 0
        assert operators[1].run("clients", "kick", away[0]).exit_code == 0
        assert operators[0].names("sessions", "ls") == sorted(here)


def test_one_core_gives_the_time_and_its_successor_goes_on(tmp_path: Path) -> None:
    with cores_in(tmp_path) as (cluster, operators):
        for operator in operators:
            clocks = {each["name"]: each["clock"] for each in operator.ask("cluster", "status")["members"]}
            assert all(clock["bound_ms"] is not None and clock["bound_ms"] < 500 for clock in clocks.values()), clocks
        references = [operator.ask("cluster", "status")["members"][0]["clock"] for operator in operators]
        (first,) = [number for number, clock in enumerate(references) if clock["is_reference"]]
        successor = operators[1 - first]
        before = references[1 - first]

        cluster.cores[first].kill()

        after = before
        until = monotonic() + 30
        while not after["is_reference"] and monotonic() < until:
            after = successor.ask("cluster", "status")["members"][0]["clock"]
        assert after["is_reference"]
        assert after["reign"] == before["reign"] + 1
        assert abs(after["offset_ms"] - before["offset_ms"]) < 500, "both machines have the same wall clock"
        with cluster.replicants[0].client(at_home(2 - first, 1)[0]) as wire:
            wire.ping()


def test_a_client_is_found_from_any_core_and_a_core_that_is_away_is_named(tmp_path: Path) -> None:
    with cores_in(tmp_path) as (cluster, operators):
        node = cluster.replicants[0]
        kept, lost = at_home(1, 2), at_home(2, 2)
        wires: dict[str, Wire] = {client_id: node.client(client_id) for client_id in [*kept, *lost]}

        for operator, client_id in ((operators[1], kept[0]), (operators[0], lost[0])):
            assert operator.ask("clients", "show", client_id)["client"]["connected"]
            assert operator.run("clients", "kick", client_id).exit_code == 0
            assert wires[client_id].receive(Disconnect).reason == 0x98
            assert operator.run("clients", "show", client_id).exit_code == 1
        cluster.cores[1].kill()

        listed = operators[0].ask("clients", "ls")
        assert [each["client_id"] for each in listed["items"]] == sorted([kept[1], lost[1]])
        assert list(listed["silent"]) == ["core2"] or sorted(listed["silent"]) == ["core2", "core2/w1"]
        assert "away" in listed["silent"]["core2"]
        shown = operators[0].run("clients", "ls")
        assert "core2 is missing: " in shown.errors
        assert operators[0].ask("clients", "show", lost[1])["client"]["connected"]  # its node says so
        unknown = operators[0].run("clients", "show", at_home(2, 3)[2])
        assert (unknown.exit_code, "core2" in unknown.errors) == (1, True)
        assert operators[0].run("clients", "kick", lost[1]).exit_code == 0
        assert wires[lost[1]].receive(Disconnect).reason == 0x98
        assert operators[0].ask("sessions", "show", kept[1])["silent"]["core2"]


def value_of(operator: Operator, key: str) -> str:
    """The value that a core has now."""
    (found,) = operator.ask("conf", "show", key)
    return str(found["value"])


def test_settings_and_bans_hold_on_cores_that_were_away_and_on_nodes_that_come_later(tmp_path: Path) -> None:
    with cores_in(tmp_path) as (cluster, operators):
        node = cluster.replicants[0]
        assert operators[0].run("conf", "set", "mqtt.receive_maximum", "7").exit_code == 0
        assert operators[1].run("bans", "add", "client", "first").exit_code == 0
        refused = operators[1].run("conf", "set", "listeners.tcp.default.bind", "127.0.0.1:0")
        assert (refused.exit_code, "belongs to one node" in refused.errors) == (1, True)
        secret = operators[1].run("conf", "set", "cluster.secret", "a-new-secret")
        assert (secret.exit_code, "is a secret" in secret.errors, "a-new-secret" in secret.errors) == (1, True, False)

        assert node.client("reader").connack.properties.receive_maximum == 7
        with Wire("127.0.0.1", node.port) as wire:
            wire.send_request(client_id="first")
            wire.expect_refusal(0x8A)
        cluster.cores[1].kill()
        assert operators[0].run("conf", "set", "mqtt.receive_maximum", "8").exit_code == 0
        assert operators[0].run("conf", "set", "history.min_qos", "2").exit_code == 0
        assert operators[0].run("bans", "rm", "client", "first").exit_code == 0
        assert operators[0].run("bans", "add", "client", "second").exit_code == 0
        cluster.cores[1].start()

        assert (value_of(operators[1], "mqtt.receive_maximum"), value_of(operators[1], "history.min_qos")) == ("8", "2")
        assert [each["value"] for each in operators[1].ask("bans", "ls")["items"]] == ["second"]
        late = cluster.replicant("late")
        late.start()
        try:
            assert late.client("reader").connack.properties.receive_maximum == 8
            with Wire("127.0.0.1", late.port) as wire:
                wire.send_request(client_id="second")
                wire.expect_refusal(0x8A)
            late.client("first")
        finally:
            late.close()
        assert operators[1].run("conf", "unset", "mqtt.receive_maximum").exit_code == 0
        assert value_of(operators[0], "mqtt.receive_maximum") == "1000"


def test_a_replicant_leaves_and_cores_stay(tmp_path: Path) -> None:
    with cores_in(tmp_path) as (cluster, operators):
        node = cluster.replicants[0]
        client = node.client("c")

        assert [each["core"] for each in operators[1].ask("cluster", "shards")] == ["core1", "core2"] * 6
        assert {each["term"] for each in operators[1].ask("cluster", "shards")} == {1}
        refused = operators[0].run("cluster", "leave", "core2")
        assert (refused.exit_code, "leads shard 1, 3, 5, 7, 9, 11" in refused.errors) == (1, True)
        ended = operators[1].run("cluster", "leave", "r1")

        assert (ended.exit_code, ended.errors) == (0, "")
        assert client.receive(Disconnect).reason == 0x9C
        assert node.process.await_end() == 0
        for operator in operators:
            assert "r1" not in [each["name"] for each in operator.ask("cluster", "status")["members"]]
