"""``ctl sessions`` and ``ctl durability`` against the API over a real Unix socket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from braidmq.control.contract import SessionInfo, SubscriptionInfo
from braidmq.control.history import DurableShard
from tests.cli.ctl.conftest import Ctl
from tests.support.api_node import ApiNode


def fields(output: str) -> dict[str, str]:
    """Names and values that stand in two columns."""
    pairs = (line.split("  ", 1) for line in output.split("\n\n")[0].splitlines())
    return {name: value.strip() for name, value in pairs}


def test_sessions_are_listed_with_what_waits_for_them(node: ApiNode, ctl: Ctl) -> None:
    now = time.time()
    node.operations.session_list = [
        SessionInfo(client_id="b", durable=False, connected=True, connected_at=now - 5, queue_messages=4),
        SessionInfo(
            client_id="a", durable=True, connected=False, session_expiry_s=3600.0, disconnected_at=now - 60.5,
            expires_at=now + 3540.5, subscriptions=2, inflight=3, records_behind=1234, lag_s=59.0,
        ),
    ]  # fmt: skip

    _, output, _ = ctl("sessions", "ls")

    header, first, second = output.splitlines()
    assert header.split()[-3:] == ["QUEUED", "BEHIND", "LAG"]
    assert first.split() == ["a", "durable", "away", "1", "m", "ago", "in", "59", "m", "2", "3", "0", "1234", "59", "s"]
    assert second.split() == ["b", "in", "memory", "connected", "5", "s", "ago", "-", "0", "0", "4", "0", "0", "s"]


def test_one_session_is_shown_with_its_subscriptions(node: ApiNode, ctl: Ctl) -> None:
    node.operations.session_list = [
        SessionInfo(client_id="a/b", durable=True, connected=True, session_expiry_s=None, oldest_at=time.time() - 50.5)
    ]
    node.operations.subscription_list = [SubscriptionInfo(client_id="a/b", topic_filter="$share/g/t/#", qos=1)]

    _, output, _ = ctl("sessions", "show", "a/b")
    _, document, _ = ctl("sessions", "show", "a/b", "--json")

    shown = fields(output)
    assert (shown["kept"], shown["session expiry"], shown["expires"]) == ("on disk", "never", "never")
    assert shown["behind the log"] == "about 0 records, 0 s"
    assert shown["oldest waiting"] == "50 s ago"
    assert "$share/g/t/#" in output
    assert json.loads(document)["session"]["durable"] is True


def test_dropping_ends_the_session_or_reports_an_unknown_session(node: ApiNode, ctl: Ctl) -> None:
    node.operations.session_list = [SessionInfo(client_id="a", durable=True, connected=False)]

    assert ctl("sessions", "drop", "a") == (0, "dropped a\n", "")
    assert node.operations.session_list == []
    assert ctl("sessions", "drop", "a") == (1, "", "braidmq ctl: there is no session 'a'\n")


def test_durability_tells_what_is_on_disk(node: ApiNode, ctl: Ctl) -> None:
    _, output, _ = ctl("durability")

    shown = fields(output)
    assert shown["durability"].startswith("fsync: messages are acknowledged once they are on disk")
    assert shown["health"] == "ok"
    assert shown["commits"] == "4 since the start, mean 2.5 ms, longest 7.0 ms"
    assert (shown["on disk"], shown["disk free"]) == ("2.0 KiB", "3.0 GiB")
    assert output.splitlines()[-1].split() == ["0", "2023-11-14T22:13:10.000000Z", "(10", "s", "ago)", "the", "beginning"]


def test_durability_tells_what_is_wrong(node: ApiNode, ctl: Ctl) -> None:
    node.operations.history.durability_answer = msgspec.structs.replace(
        node.operations.history.durability_answer, mode="os", health="stopped", reason="the disk is gone", needs_restart=True,
        congested=True, pending_bytes=1024, clock_alarm="the wall clock is 9 s ahead", commit_age_s=2.04,
        shards=[DurableShard(shard=0, watermark=0, floor=0)],
    )  # fmt: skip

    _, output, _ = ctl("durability")

    shown = fields(output)
    assert shown["durability"].startswith("os: ")
    assert shown["health"] == "stopped: the disk is gone (until the node is restarted)"
    assert shown["waiting for the disk"] == "1.0 KiB, publishers are throttled"
    assert shown["clock"] == "the wall clock is 9 s ahead"
    assert (shown["commits"], shown["last commit"]) == ("-", "2.0 s ago")


def test_watching_shows_the_rates_of_the_last_interval_until_it_is_interrupted(node: ApiNode, tmp_path: Path) -> None:
    first = node.operations.history.durability_answer
    command = [sys.executable, "-m", "braidmq", "ctl", "--data-dir", str(tmp_path), "durability", "--watch", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = iter(watching.stdout.readline, "")
        assert next(line for line in lines if line.startswith("commits")).split(maxsplit=1)[1].startswith("4 since the start")
        node.operations.history.durability_answer = msgspec.structs.replace(
            first, at=first.at + 2, commits=14, commit_s_total=0.030, commit_s_max_recent=0.004
        )

        changed = next(line for line in lines if line.startswith("commits") and "5 per second" in line)

        watching.send_signal(signal.SIGINT)
        assert changed.split(maxsplit=1)[1] == "5 per second, mean 2.0 ms, longest recently 4.0 ms\n"
        assert watching.wait(10) == 0


def test_a_token_for_readers_of_the_history_is_printed(node: ApiNode, ctl: Ctl) -> None:
    assert ctl("token", "ann", "--valid", "12h") == (0, "ann for 43200 s\n", "")
