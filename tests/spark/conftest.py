"""One Spark session for all tests of a run, and a history service that answers from memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.class_archive import class_archive
from tests.support.fakes.history_service import FakeHistoryService

ROOT = Path(__file__).resolve().parent.parent.parent
# A JVM under test lives for seconds: on two processors the thorough compiler and the parallel collector take from it
# more time than they give.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM_OPTIONS)


# Whichever test comes first makes the archive of classes and starts Java. A test that is stopped meanwhile leaves the
# session unusable for all tests after it.
WITH_JAVA_S = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of the shared session time for its start."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(WITH_JAVA_S))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the Spark of this environment is too old for: `make test-spark-matrix` runs some files on older ones."""
    for mark in item.iter_markers("since_spark"):
        [version] = mark.args
        if tuple(map(int, pyspark.__version__.split(".")[:2])) < tuple(map(int, version.split("."))):
            pytest.skip(f"needs Spark {version}: docs/spark.md, Triggers and versions")
    starts_java = "spark" in getattr(item, "fixturenames", ()) or any("java" in mark.args for mark in item.iter_markers("needs"))
    if starts_java and os.environ["SPARK_SUBMIT_OPTS"] == JVM_OPTIONS and (archive := class_archive(JVM_OPTIONS)) is not None:
        os.environ["SPARK_SUBMIT_OPTS"] = f"{JVM_OPTIONS} -Xlog:disable -XX:SharedArchiveFile={archive}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two threads; its Python workers are this Python with this source tree."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    directory = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("braidmq tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.local.dir", str(directory / "local"))
        .config("spark.sql.streaming.stopTimeout", "20s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _session_is_active(request: pytest.FixtureRequest) -> None:
    """Spark looks for formats in the active session of its thread, and that thread may be another one after a job ran here."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").createDataFrame([], "nothing int")  # which makes its session the active one


@pytest.fixture
def history() -> Iterator[FakeHistoryService]:
    """An empty history service on a free port of this machine."""
    with FakeHistoryService() as service:
        yield service
