"""The log: formats, rate limit, and the drop log that names every dropped message."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from braidmq.base.logs import JsonFormatter, RateLimit, TextFormatter
from tests.support.stage import Stage, wait_until

Start = Callable[..., Stage]


def record(message: str, *arguments: object, **more: object) -> logging.LogRecord:
    """A line about to be written."""
    made = logging.LogRecord("braidmq.test", logging.WARNING, "file.py", 1, message, arguments, None)
    made.__dict__.update(more)
    return made


def test_a_json_line_is_one_object_with_its_fields() -> None:
    line = JsonFormatter().format(record("client %s said %s", "grüß", '"\n', fields={"client_id": "grüß"}))

    assert "\n" not in line
    read = json.loads(line)
    assert read["message"] == 'client grüß said "\n'
    assert (read["level"], read["logger"], read["client_id"]) == ("warning", "braidmq.test", "grüß")


def test_client_text_cannot_break_a_text_log_line() -> None:
    line = TextFormatter().format(record("client %s", "evil\n2026-01-01 00:00:00 info all is well\x1b[2J"))

    assert "\n" not in line
    assert "\x1b" not in line
    assert "warning" in line
    assert "all is well" in line


def test_a_traceback_is_written_in_both_forms() -> None:
    try:
        raise RuntimeError("because")
    except RuntimeError as error:
        failed = record("failed", exc_info=(RuntimeError, error, error.__traceback__))

    assert "RuntimeError: because" in TextFormatter().format(failed)
    assert "RuntimeError: because" in json.loads(JsonFormatter().format(failed))["traceback"]


def test_log_lines_are_rate_limited_per_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("braidmq.base.logs.monotonic", lambda: now)
    limit = RateLimit(3)

    passed = [limit.filter(record("the same of %s", number)) for number in range(10)]
    other = limit.filter(record("something else"))
    now += 1.0
    after = record("the same of %s", 10)
    limit.filter(after)

    assert passed == [True] * 3 + [False] * 7
    assert other
    assert "7 more" in after.getMessage()
    assert limit.suppressed == 7


class Lines(logging.Handler):
    """Keeps what the drop log says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture
def drop_log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written to the drop log during a test."""
    lines = Lines()
    logger = logging.getLogger("braidmq.drops")
    monkeypatch.setattr(logger, "handlers", [lines])
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    return lines.said


def test_every_kind_of_drop_names_client_topic_and_reason(start: Start, drop_log: list[str]) -> None:
    stage = start(
        log={"drops": True},
        session={"queue_messages_max": 1, "queue_wait": 0},
        history={"topics": []},
        retained={"messages_max": 1},
        delayed={"messages_max": 0},
        mqtt={"check_payload_format": True},
    )
    away = stage.connect("away", persistent=True)
    away.subscribe("a/#", qos=0)
    away.disconnect()
    full = stage.connect("full", receive_maximum=1)
    full.subscribe("q/#", qos=1)
    small = stage.connect("small", maximum_packet_size=50)
    small.subscribe("a/#", qos=1)
    sender = stage.connect("sender")

    sender.publish("a/absent", b"", 0)
    for topic in ("q/in_flight", "q/1", "q/queue_full"):
        sender.publish(topic, b"", 1)
    sender.publish("a/too_large", b"x" * 100, 1)
    sender.publish("b/1", b"first", 1, retain=True)
    sender.publish("b/retained_full", b"second", 1, retain=True)
    sender.publish("$delayed/1/b/delayed_full", b"", 1)
    sender.publish("$SYS/reserved", b"", 1)
    sender.publish("b/payload_format", b"\xff", 1, payload_format_indicator=1)
    full.close()
    wait_until(lambda: "full" not in [each.client_id for each in stage.look(lambda inside: list(inside.sessions))], "it is gone")

    assert drop_log == [
        "dropped (absent): client away, topic a/absent",
        "dropped (queue_full): client full, topic q/queue_full",
        "dropped (too_large): client small, topic a/too_large",
        "dropped (retained_full): client sender, topic b/retained_full",
        "dropped (delayed_full): client sender, topic b/delayed_full",
        "dropped (reserved): client sender, topic $SYS/reserved",
        "dropped (payload_format): client sender, topic b/payload_format",
        "dropped (session_ended): client full, topic q/in_flight",
        "dropped (session_ended): client full, topic q/1",
    ]


def test_drops_are_logged_only_if_configured_but_always_counted(start: Start, drop_log: list[str]) -> None:
    stage = start()
    sender = stage.connect()

    sender.publish("$SYS/reserved", b"", 0)

    wait_until(lambda: stage.drops("reserved") == 1, "it is counted")
    assert drop_log == []
