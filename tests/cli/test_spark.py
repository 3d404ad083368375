"""``braidmq pyspark`` and ``braidmq spark-submit``: how Spark's own programs are started, and what is said if they cannot be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

RUN = "import sys; from braidmq.cli.main import main; main(sys.argv[1:])"
# Stands for Spark's programs: says how it was started, then does what it is told.
PROGRAM = f"""#!{sys.executable}
import json, os, sys, time, zipfile
files = [sys.argv[at + 1] for at, each in enumerate(sys.argv) if each == "--py-files"]
names = [zipfile.ZipFile(file).namelist() for each in files[:1] for file in each.split(",")[:1]]
told = {{"arguments": sys.argv[1:], "environ": dict(os.environ), "name": os.path.basename(sys.argv[0]), "packed": names}}
print(json.dumps(told), flush=True)
if "--wait" in sys.argv:
    time.sleep(60)
sys.exit(7 if "--fail" in sys.argv else 0)
"""


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    for name in ("pyspark", "spark-submit"):
        (home / "bin" / name).write_text(PROGRAM)
        (home / "bin" / name).chmod(0o755)
    return home


def clean(**environment: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")} | environment


def run(spark_home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean(SPARK_HOME=str(spark_home), **environment),
    )


def told(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("command", ["pyspark", "spark-submit"])
def test_sparks_program_is_started_with_this_python_and_all_arguments(spark_home: Path, command: str) -> None:
    arguments = ["--conf", "spark.ui.enabled=false", "app.py", "--help", "-x"]

    found = told(run(spark_home, command, *arguments))

    assert (found["name"], found["arguments"]) == (command, arguments)
    assert found["environ"]["PYSPARK_PYTHON"] == found["environ"]["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert str(Path(__file__).parents[2] / "src") in found["environ"]["PYTHONPATH"].split(os.pathsep)
    assert found["packed"] == []


def test_another_shell_for_the_driver_is_left_alone(spark_home: Path) -> None:
    found = told(run(spark_home, "pyspark", PYSPARK_DRIVER_PYTHON="ipython"))

    assert (found["environ"]["PYSPARK_PYTHON"], found["environ"]["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, "ipython")


def test_the_help_of_spark_itself_is_after_two_dashes(spark_home: Path) -> None:
    ours = run(spark_home, "spark-submit", "--help")

    assert told(run(spark_home, "spark-submit", "--", "--help"))["arguments"] == ["--help"]
    assert "PYSPARK_PYTHON" in ours.stdout


def test_the_package_goes_along_to_a_cluster(spark_home: Path) -> None:
    found = told(run(spark_home, "spark-submit", "--master", "spark://host:7077", "app.py", "--py-files", "mine.zip"))

    [archive], arguments = found["packed"], found["arguments"]
    assert {"braidmq/__init__.py", "braidmq/spark/source/format.py", "pyspark_braidmq/__init__.py"} <= set(archive)
    assert not [name for name in archive if not name.endswith(".py")]
    assert arguments[2:] == ["--master", "spark://host:7077", "app.py", "--py-files", "mine.zip"]
    assert not Path(arguments[1]).exists(), "it is removed when Spark has ended"


def test_the_exit_status_is_that_of_the_application(spark_home: Path) -> None:
    assert run(spark_home, "spark-submit", "app.py", "--fail").returncode == 7


def test_a_signal_is_passed_on_and_waited_for(spark_home: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, "spark-submit", "app.py", "--wait"],
        stdout=subprocess.PIPE,
        env=clean(SPARK_HOME=str(spark_home)),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # Spark runs
        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 1
        assert process.stdout.read() == b"", "and has ended"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PYSPARK_PYTHON": "/nowhere/python"}, "PYSPARK_PYTHON is /nowhere/python, which does not run"),
        ({"JAVA_HOME": "/nowhere"}, "Spark needs Java, but none was found in JAVA_HOME"),
        ({"SPARK_HOME": "/nowhere"}, "SPARK_HOME is /nowhere, which has no bin/spark-submit"),
    ],
)
def test_a_failure_to_start_is_reported_in_one_line(
    tmp_path: Path, spark_home: Path, environment: dict[str, str], words: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", RUN, "spark-submit", "app.py"],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean(**{"SPARK_HOME": str(spark_home)} | environment),
    )

    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert line.startswith("braidmq spark-submit: ")
    assert words in line


def test_a_python_that_lacks_braidmq_is_named_with_the_remedy(tmp_path: Path, spark_home: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.base_exec_prefix}/bin/python3 -S -I "$@"\n')
    bare.chmod(0o755)

    result = run(spark_home, "pyspark", PYSPARK_PYTHON=str(bare))

    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert f"PYSPARK_PYTHON is {bare}, which cannot run braidmq: ModuleNotFoundError: No module named 'braidmq'" in line
    assert f"set PYSPARK_PYTHON to {sys.executable}" in line


def test_files_that_the_user_ships_are_kept_beside_the_package() -> None:
    from braidmq.spark.launch import packed, with_files

    assert with_files(["--py-files", "a.zip,b.py", "app.py"], "ours.zip") == ["--py-files", "ours.zip,a.zip,b.py", "app.py"]
    assert with_files(["--py-files=a.zip", "app.py"], "ours.zip") == ["--py-files=ours.zip,a.zip", "app.py"]
    assert with_files(["app.py"], "ours.zip") == ["--py-files", "ours.zip", "app.py"]
    with packed() as archive:
        assert zipfile.ZipFile(archive).testzip() is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], True),
        (["--master", "local[2]", "app.py"], True),
        (["--master=yarn", "app.py"], False),
        (["--conf", "spark.master=k8s://x", "app.py"], False),
        (["-c", "spark.master=local", "app.py"], True),
        (["--remote", "sc://host", "app.py"], False),
        (["--name", "x", "app.py", "--master", "yarn"], True),
    ],
)
def test_the_master_is_that_of_the_arguments_before_the_application(arguments: list[str], expected: bool) -> None:
    from braidmq.spark.launch import is_local

    assert is_local(arguments) is expected
