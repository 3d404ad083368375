"""``braidmq bench`` as a user runs it, against our own broker and against Mosquitto."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.testing import Broker
from tests.support.command import end, run, start
from tests.support.mosquitto import mosquitto


@pytest.fixture(scope="module", params=["braidmq", pytest.param("mosquitto", marks=pytest.mark.needs("mosquitto"))])
def port(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that accepts every login."""
    if request.param == "braidmq":
        with Broker() as broker:
            yield str(broker.port)
    else:
        with mosquitto(tmp_path_factory.mktemp("mosquitto")) as server:
            yield str(server.port)


def bench(kind: str, port: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark to its end; gives its JSON."""
    ended = run("bench", kind, "-h", "127.0.0.1", "-p", port, "-i", "0", "--json", "--quiet", *arguments)
    assert (ended.exit_code, ended.errors) == (0, "")
    result: dict[str, Any] = json.loads(ended.output)
    return result


def test_conn_connects_all_clients_and_measures_the_time(port: str) -> None:
    result = bench("conn", port, "-c", "50", "--duration", "0")

    assert (result["clients"], result["connected"], result["failures"]) == (50, 50, {})
    assert result["latency_ms"]["max"] >= result["latency_ms"]["p50"] > 0
    assert sum(each["count"] for each in result["histogram"]) == 50


@pytest.mark.parametrize(
    ("version", "qos", "shape", "copies"),
    [("4", "0", "pair", 1), ("5", "1", "pair", 1), ("3", "2", "pair", 1), ("5", "0", "fanout", 3), ("4", "0", "fanin", 1)],
)
def test_flow_delivers_everything_exactly_once(port: str, version: str, qos: str, shape: str, copies: int) -> None:
    options = ["-V", version, "-q", qos, "--shape", shape, "-c", "4", "-F", "20", "-s", "64", "-L", "3000"]
    if shape == "fanout":
        options += ["--subscribers", "3"]

    result = bench("flow", port, *options)

    assert result["sent"] == 3000
    assert result["received"] == 3000 * copies
    assert (result["lost"], result["duplicates"], result["failures"]) == (0, 0, {})
    assert result["acknowledged"] == (3000 if qos != "0" else 0)
    assert sum(each["count"] for each in result["histogram"]) == 3000 * copies


def test_flow_from_many_to_one_is_lossless_at_qos_1() -> None:
    # Not against Mosquitto 2.0.11, which now and then leaves the last queued messages of such a subscriber unsent.
    with Broker() as broker:
        result = bench("flow", str(broker.port), "-V", "4", "-q", "1", "--shape", "fanin", "-c", "4", "-F", "20", "-L", "3000")

    assert (result["sent"], result["received"], result["lost"], result["duplicates"]) == (3000, 3000, 0, 0)


def test_pub_stops_at_the_limit_and_measures_acknowledgements(port: str) -> None:
    result = bench("pub", port, "-t", "bench/%i", "-c", "5", "-I", "0", "-F", "10", "-q", "1", "-L", "1000")

    assert (result["sent"], result["acknowledged"], result["refused"]) == (1000, 1000, 0)
    assert result["latency_of"] == "PUBLISH to acknowledgement"
    assert result["latency_ms"]["p99"] > 0


def test_sub_sees_what_pub_sends_until_ctrl_c_ends_it_with_a_report(port: str) -> None:
    publisher = start(
        *("bench", "pub", "-h", "127.0.0.1", "-p", port, "-t", "pubsub/%i", "-c", "3", "-I", "2", "-q", "1", "-F", "0"),
        *("-i", "0", "--json", "--quiet"),
    )

    received = bench("sub", port, "-t", "pubsub/#", "-c", "2", "-q", "1", "-L", "600")
    publisher.send_signal(signal.SIGINT)
    ended = end(publisher)

    assert (received["lost"], received["duplicates"]) == (0, 0)
    assert received["received"] >= 600
    assert received["latency_of"] == "publisher to subscriber"
    assert sum(each["count"] for each in received["histogram"]) == received["received"]
    assert (ended.exit_code, ended.errors) == (0, "")
    assert json.loads(ended.output)["sent"] >= 300


def test_the_report_is_a_table_with_a_histogram_and_progress_goes_to_standard_error(port: str) -> None:
    ended = run("bench", "flow", "-h", "127.0.0.1", "-p", port, "-c", "2", "-i", "0", "-F", "5", "--duration", "1.3")

    assert ended.exit_code == 0
    assert all(word in ended.errors for word in ("4/4 up", "sent ", "got ", "p99 ", "lost 0"))
    assert all(len(line) <= 80 for line in ended.errors.splitlines())
    assert "lost" in ended.output
    assert "p99.9" in ended.output
    assert "####" in ended.output


def test_names_are_made_of_prefix_and_number(port: str) -> None:
    names = ["-c", "3", "-n", "7", "--prefix", "px", "--shortids"]

    sent = bench("pub", port, "-t", "named/%c/%i", *names, "-L", "3", "-I", "900", "-r")
    seen = run("sub", "-h", "127.0.0.1", "-p", port, "-t", "named/#", "-C", "3", "-F", "%t", "-W", "10")

    assert sent["sent"] == 3
    assert sorted(seen.output.split()) == ["named/px7/7", "named/px8/8", "named/px9/9"]


def test_bench_works_over_websocket() -> None:
    with Broker() as broker:
        result = bench("flow", str(broker.ports["ws:default"]), "--ws", "-c", "2", "-F", "20", "-L", "500", "-q", "1")

    assert (result["received"], result["lost"], result["duplicates"]) == (500, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["conn", "-h", "127.0.0.1", "-p", "1", "-c", "3"], 1, "cannot connect to 127.0.0.1:1: connection refused"),
        (["flow", "-s", "8"], 2, "at least 24 bytes"),
        (["flow", "-t", "same"], 1, "%i"),
        (["pub", "-t", "a/#"], 1, "wildcard"),
        (["pub"], 2, "'-t'"),
        (["sub", "-t", "a/#/b"], 1, "# is not the whole last level"),
        (["conn", "-V", "6"], 2, "mqttv5"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_status(arguments: list[str], exit_code: int, words: str) -> None:
    ended = run("bench", *arguments, "--quiet")

    assert (ended.exit_code, ended.output) == (exit_code, "")
    assert len(ended.errors.splitlines()) == 1
    assert words in ended.errors
