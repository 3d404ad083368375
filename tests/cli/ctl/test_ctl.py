"""``braidmq ctl`` against the API over a real Unix socket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from braidmq.control.cluster import DrainRequest, DrainStatus, MemberInfo
from braidmq.control.contract import BanInfo, ClientInfo, ListenerStatus, NodeSummary, RetainedInfo, SubscriptionInfo
from tests.cli.ctl.conftest import Ctl
from tests.support.api_node import ApiNode


def client(client_id: str, **fields: object) -> ClientInfo:
    return ClientInfo(client_id=client_id, connected=True, protocol="MQTT 5", connected_at=time.time() - 90, **fields)  # type: ignore[arg-type]


def test_status_shows_how_the_node_is(node: ApiNode, ctl: Ctl) -> None:
    listener = ListenerStatus(kind="tcp", name="default", bind="127.0.0.1:1883", running=True, connections=0, connections_max=9)
    node.operations.listener_list = [listener]

    exit_code, output, _ = ctl("status")

    assert exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert lines["node"] == "core1"
    assert lines["uptime"] == "1 h 2 m"
    assert lines["listeners"] == "tcp:default 127.0.0.1:1883"


def test_json_is_what_the_node_answered(node: ApiNode, ctl: Ctl) -> None:
    _, output, _ = ctl("status", "--json")

    assert json.loads(output)["uptime_s"] == 3723.0


def test_json_may_also_be_asked_for_right_after_ctl(node: ApiNode, ctl: Ctl) -> None:
    _, output, _ = ctl("--json", "log", "level")

    assert json.loads(output) == {"level": "info"}


def test_clients_are_listed_in_a_table(node: ApiNode, ctl: Ctl) -> None:
    node.operations.client_list = [client("b"), client("a", user_name="anna", peer="192.0.2.1:5000")]

    _, output, _ = ctl("clients", "ls")

    header, first, second = output.splitlines()
    assert header.split()[:2] == ["CLIENT", "STATE"]
    assert first.split()[:7] == ["a", "connected", "1", "m", "30", "s", "ago"]
    assert "anna" in first
    assert "192.0.2.1:5000" in first
    assert second.startswith("b ")


def test_a_list_says_when_there_is_more_and_all_shows_it(node: ApiNode, ctl: Ctl) -> None:
    node.operations.client_list = [client(f"c{number:04}") for number in range(1500)]

    _, some, hint = ctl("clients", "ls", "--limit", "5")
    _, everything, no_hint = ctl("clients", "ls", "--all")

    assert len(some.splitlines()) == 1 + 5
    assert "--all" in hint
    assert len(everything.splitlines()) == 1 + 1500
    assert no_hint == ""


def test_a_hostile_client_id_cannot_steer_the_terminal(node: ApiNode, ctl: Ctl) -> None:
    node.operations.client_list = [client("\x1b[2J\x07evil[red]")]

    _, output, _ = ctl("clients", "ls")

    assert "\x1b" not in output
    assert "\\u001b[2J\\u0007evil[red]" in output


def test_one_client_is_shown_with_its_subscriptions(node: ApiNode, ctl: Ctl) -> None:
    node.operations.client_list = [client("a/b")]
    node.operations.subscription_list = [SubscriptionInfo(client_id="a/b", topic_filter="$share/g/t/#", qos=1)]

    _, output, _ = ctl("clients", "show", "a/b")

    assert "$share/g/t/#" in output
    assert "MQTT 5" in output


def test_kicking_disconnects_the_client_or_reports_an_unknown_client(node: ApiNode, ctl: Ctl) -> None:
    node.operations.client_list = [client("a")]

    assert ctl("clients", "kick", "a") == (0, "kicked a\n", "")
    assert node.operations.client_list == []
    assert ctl("clients", "kick", "a") == (1, "", "braidmq ctl: there is no client 'a'\n")


def test_subscriptions_and_topics_are_listed(node: ApiNode, ctl: Ctl) -> None:
    node.operations.subscription_list = [
        SubscriptionInfo(client_id=name, topic_filter="t/+", qos=1, no_local=name == "a") for name in ("a", "b")
    ]

    _, of_one, _ = ctl("subscriptions", "ls", "--client", "a")
    _, topics, _ = ctl("topics", "ls")

    assert of_one.splitlines()[1].split() == ["a", "t/+", "1", "yes", "no", "-"]
    assert topics.splitlines()[1].split() == ["t/+", "2"]


def test_retained_messages_are_listed_and_removed(node: ApiNode, ctl: Ctl) -> None:
    node.operations.retained_list = [RetainedInfo(topic="a/1", qos=1, payload_bytes=5, stored_at=time.time() - 5)]

    _, output, _ = ctl("retained", "ls")
    removed = ctl("retained", "rm", "a/1")

    assert output.splitlines()[1].split()[:3] == ["a/1", "1", "5"]
    assert removed == (0, "removed a/1\n", "")
    assert ctl("retained", "ls")[1] == "no retained\n"


def test_listeners_are_listed(node: ApiNode, ctl: Ctl) -> None:
    listener = ListenerStatus(kind="ws", name="x", bind="[::1]:8083", running=False, connections=4, connections_max=9)
    node.operations.listener_list = [listener]

    assert ctl("listeners", "ls")[1].splitlines()[1].split() == ["ws:x", "[::1]:8083", "no", "4", "9"]


def test_a_ban_has_a_duration_and_can_be_lifted(node: ApiNode, ctl: Ctl) -> None:
    before = time.time()

    assert ctl("bans", "add", "user", "mallory", "--for", "10m", "--reason", "guessing")[0] == 0
    (ban,) = node.operations.ban_list
    assert ban == BanInfo(kind="user", value="mallory", reason="guessing", until=ban.until)
    assert ban.until is not None
    assert 599 < ban.until - before < 620
    assert "guessing" in ctl("bans", "ls")[1]

    assert ctl("bans", "rm", "user", "mallory")[0] == 0
    assert node.operations.ban_list == []


def test_a_ban_with_an_invalid_duration_is_rejected_without_a_request(node: ApiNode, ctl: Ctl) -> None:
    exit_code, _, errors = ctl("bans", "add", "user", "mallory", "--for", "soon")

    assert exit_code == 2
    assert len(errors.splitlines()) == 1
    assert node.operations.ban_list == []


def test_the_configuration_is_shown_set_and_unset(node: ApiNode, ctl: Ctl) -> None:
    assert ctl("conf", "show", "mqtt")[1].splitlines()[1].split() == ["mqtt.receive_maximum", "1000", "default"]
    assert ctl("conf", "set", "mqtt.receive_maximum", "50")[1].splitlines()[1].split()[1:] == ["50", "run", "time"]
    assert ctl("conf", "unset", "mqtt.receive_maximum")[1].splitlines()[1].split()[1:] == ["1000", "default"]


def test_a_refused_setting_is_one_line_with_the_hint(node: ApiNode, ctl: Ctl) -> None:
    exit_code, output, errors = ctl("conf", "set", "mqtt.recieve_maximum", "50")

    assert (exit_code, output) == (1, "")
    assert errors == "braidmq ctl: mqtt.recieve_maximum: unknown key; did you mean mqtt.receive_maximum?\n"


def test_the_level_of_the_log_is_set(node: ApiNode, ctl: Ctl) -> None:
    assert ctl("log", "level", "debug") == (0, "debug\n", "")
    assert node.operations.level == "debug"


def test_a_trace_prints_lines_and_ends_cleanly_with_ctrl_c(node: ApiNode, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "braidmq.cli.main", "ctl", "--data-dir", str(tmp_path), "trace", "client", "c1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        node.call(node.operations.trace_lines.put("CONNECT from 192.0.2.1"))
        assert process.stdout.readline() == "CONNECT from 192.0.2.1\n"

        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=10)

    assert (process.returncode, errors) == (0, "")
    node.call(node.operations.trace_ended.wait())
    assert node.operations.trace_asked == ("client", "c1")


def test_the_api_is_used_over_tcp_with_the_token_of_the_data_directory(node: ApiNode, ctl: Ctl) -> None:
    assert ctl("--api", node.url, "log", "level") == (0, "info\n", "")


def test_without_the_token_the_api_says_what_is_missing(node: ApiNode, ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "ctl.token").unlink()

    exit_code, _, errors = ctl("--api", node.url, "status")

    assert exit_code == 1
    assert "needs the token from ctl.token" in errors


def test_a_node_that_does_not_run_is_reported_in_one_line(ctl: Ctl, tmp_path: Path) -> None:
    exit_code, output, errors = ctl("status")

    assert (exit_code, output) == (1, "")
    assert errors.startswith(f"braidmq ctl: no node is running with the data directory {tmp_path} ")
    assert len(errors.splitlines()) == 1


def test_an_address_that_nothing_listens_on_is_reported_in_one_line(ctl: Ctl) -> None:
    assert ctl("--api", "http://127.0.0.1:1", "status")[2] == "braidmq ctl: no process listens at http://127.0.0.1:1\n"


def test_the_status_of_a_core_lists_its_nodes(node: ApiNode, ctl: Ctl) -> None:
    node.operations.node_list = [
        NodeSummary(name="r1", role="replicant", connections=7),
        NodeSummary(name="r2", role="replicant", trouble="r2 did not answer in time"),
    ]

    _, output, _ = ctl("status")

    *_, header, first, second = output.splitlines()
    assert header.split() == ["NODE", "ROLE", "CONNECTIONS", "TROUBLE"]
    assert first.split() == ["r1", "replicant", "7", "-"]
    assert "r2 did not answer in time" in second


def test_the_members_of_a_cluster_are_listed(node: ApiNode, ctl: Ctl) -> None:
    node.operations.member_list = [
        MemberInfo(name="core1", role="core", state="serving", incarnation=5, clients=1),
        MemberInfo(name="r1", role="replicant", state="serving", incarnation=7, clients=3, feed="behind", feed_lag_s=4.0,
                   rlog="catchup", rlog_lag=12, alarms=["slow"]),
    ]  # fmt: skip

    _, output, _ = ctl("cluster", "status")
    _, document, _ = ctl("cluster", "status", "--json")

    header, core, replicant, _, version = output.splitlines()
    assert version == "cluster braidmq, version 1"
    assert header.split()[:4] == ["NODE", "ROLE", "STATE", "CLIENTS"]
    assert core.split()[:4] == ["core1", "core", "serving", "1"]
    assert "4 s behind" in replicant
    assert "catchup, 12 behind" in replicant
    assert replicant.rstrip().endswith("slow")
    assert [member["name"] for member in json.loads(document)["members"]] == ["core1", "r1"]


def test_a_dead_node_is_forgotten(node: ApiNode, ctl: Ctl) -> None:
    node.operations.member_list = [MemberInfo(name="r1", role="replicant", state="away", incarnation=7)]

    assert ctl("cluster", "forget", "r1") == (0, "r1 is dead\n", "")
    exit_code, _, errors = ctl("cluster", "forget", "r1")

    assert exit_code == 1
    assert "there is no node 'r1'" in errors


def test_a_ban_names_the_nodes_that_do_not_have_it_yet(node: ApiNode, ctl: Ctl) -> None:
    node.operations.silent = {"r2": "it is slow"}

    exit_code, output, errors = ctl("bans", "add", "client", "c")

    assert (exit_code, output) == (0, "banned client c\n")
    assert errors.startswith("r2 has not confirmed the ban yet")


def test_a_list_names_the_nodes_whose_entries_are_missing(node: ApiNode, ctl: Ctl) -> None:
    node.operations.client_list = [client("a")]
    node.operations.silent = {"r2": "it is not connected"}

    _, output, errors = ctl("clients", "ls")

    assert "a " in output
    assert errors == "r2 is missing: it is not connected\n"


def test_a_drain_shows_its_progress_until_no_client_is_left(node: ApiNode, ctl: Ctl) -> None:
    node.operations.drain_steps = [
        DrainStatus(node="r1", is_done=False, moved=0, left=3),
        DrainStatus(node="r1", is_done=True, moved=3, left=0),
    ]

    exit_code, output, _ = ctl("node", "drain", "r1", "--rate", "7", "--deadline", "2m")

    assert exit_code == 0
    assert output == "r1: 0 clients sent away, 3 left\nr1 is drained: 3 clients were sent away\n"
    assert node.operations.drain_asked == DrainRequest(node="r1", rate=7, deadline_s=120.0)
