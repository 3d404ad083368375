"""The Python that Spark runs the source in: chosen by importing braidmq.spark, mended by `register`, without help nobody's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from braidmq.base.errors import UsageError
from braidmq.spark import BraidDataSource, launch, register
from tests.support.fakes.history_service import FakeHistoryService

ROOT = Path(__file__).resolve().parent.parent.parent
OTHER = "/usr/bin/some-other-python3"


class Session:
    """What `register` uses of a session."""

    def __init__(self, master: str | None, python: str = OTHER, error: Exception | None = None) -> None:
        if master is not None:
            self._sc = SimpleNamespace(master=master, pythonExec=python)
        self.registered: list[type] = []
        self._error = error
        self.dataSource = self

    def register(self, source: type) -> None:
        if self._error is not None:
            raise self._error
        self.registered.append(source)


def test_a_later_spark_session_runs_in_this_python_unless_another_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_is_started", lambda: False)
    empty: dict[str, str] = {}
    chosen = {"PYSPARK_PYTHON": OTHER}
    submitted = {"PYSPARK_GATEWAY_PORT": "1"}

    for environ in (empty, chosen, submitted):
        launch.prepare(environ)

    assert empty == {"PYSPARK_PYTHON": sys.executable}
    assert chosen == {"PYSPARK_PYTHON": OTHER}
    assert submitted == {"PYSPARK_GATEWAY_PORT": "1"}
    monkeypatch.setattr(launch, "_is_started", lambda: True)
    late: dict[str, str] = {}
    launch.prepare(late)
    assert late == {}


@pytest.mark.parametrize(("master", "expected"), [("local[2]", sys.executable), ("spark://host:7077", OTHER), (None, None)])
def test_registering_mends_the_python_of_a_local_session_only(
    master: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    session: Any = Session(master)

    register(session)

    assert session.registered == [BraidDataSource]
    assert getattr(getattr(session, "_sc", None), "pythonExec", None) == expected


@pytest.mark.row("K15")
def test_a_python_that_was_chosen_is_kept_or_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tmp_path / "python"
    good.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    good.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(good))
    session: Any = Session("local", str(good))

    register(session)

    assert session._sc.pythonExec == str(good)
    monkeypatch.setenv("PYSPARK_PYTHON", OTHER)
    with pytest.raises(UsageError, match=f"PYSPARK_PYTHON is {OTHER}, which does not run"):
        register(Session("local"))  # type: ignore[arg-type]


def test_registering_twice_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    register(Session("local", error=AnalysisException("exists already")))  # type: ignore[arg-type]


@pytest.mark.row("K15")
@pytest.mark.timeout(180)
def test_the_first_application_of_the_page_runs_as_it_is_where_nothing_is_set(
    history: FakeHistoryService, tmp_path: Path
) -> None:
    """The `python3` of that PATH has no braidmq: without help the read ends in DATA_SOURCE_NOT_FOUND."""
    for number in range(6):
        history.add(f"plant/{number % 2}/temp", b"%d" % number)
    page = (ROOT / "docs" / "spark.md").read_text()
    [application] = re.findall(r"^## A first application\n.*?^```python\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "plant.py").write_text(application.replace("localhost:8815", history.address))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    environ |= {"PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}

    run = subprocess.run([sys.executable, "plant.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=170)

    assert run.returncode == 0, run.stderr[-3000:]
    assert sorted(re.findall(r"\|(plant/\d/temp)\s*\|(\d+)", run.stdout)) == [("plant/0/temp", "3"), ("plant/1/temp", "3")]
    assert list((tmp_path / "lake" / "plant").glob("*.parquet"))
