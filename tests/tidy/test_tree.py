"""Rules about files: what may lie around, how long they are, what they may not say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SOURCES, project_files, relative, text_files

# Whatever else appears at the top is a stray file.
TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "benchmarks",
    "docs",
    "pyproject.toml",
    "requirements-node.lock",
    "requirements-peers.lock",
    "requirements-spark-4.0.lock",
    "requirements-spark-4.1.lock",
    "requirements-tools.lock",
    "requirements.lock",
    "scripts",
    "setup.py",
    "src",
    "tests",
}
LINES_MAX = 450  # beyond it a file is two subjects
TEST_LINES_MAX = 500
CLOSED = {"src/braidmq/net/proto_v1.py"}  # a released format grows no more
BYTES_MAX = 400_000
LOCKS = [*sorted(ROOT.glob("requirements*.lock")), ROOT / "scripts" / "node" / "package-lock.json"]


def test_nothing_stray_lies_at_the_top() -> None:
    assert {relative(file).partition("/")[0] for file in project_files()} - TOP_LEVEL == set()


def test_nothing_built_or_temporary_would_be_committed() -> None:
    stray = re.compile(r"\.(so|o|pyc|pyo|orig|rej|bak|swp|log|tmp)$|~$|(^|/)(\.DS_Store|core)$")

    assert [relative(file) for file in project_files() if stray.search(relative(file))] == []


def test_no_file_has_grown_into_two_subjects() -> None:
    def is_long(file: Path) -> bool:
        lines_max = LINES_MAX if file.is_relative_to(SOURCES) and relative(file) not in CLOSED else TEST_LINES_MAX
        return file.read_text().count("\n") > lines_max

    code = [file for file in project_files() if file.suffix in {".py", ".pyx", ".c"}]

    assert [relative(file) for file in code if is_long(file)] == []


def test_no_file_is_too_large_for_a_repository() -> None:
    assert {relative(file): size for file in project_files() if (size := file.stat().st_size) > BYTES_MAX} == {}


def test_text_is_utf8_with_unix_lines_and_a_newline_at_the_end() -> None:
    def is_untidy(data: bytes) -> bool:
        data.decode("utf-8")
        return b"\r\n" in data or (bool(data) and not data.endswith(b"\n"))

    assert [relative(file) for file in text_files() if is_untidy(file.read_bytes())] == []


def test_no_file_names_a_path_of_a_developers_machine() -> None:
    # Spelt so that this file does not name one itself.
    paths = re.compile(r"(?<![\w.~-])/(?:{})/".format("|".join(["home/[a-z]", "work", "root", "Users/[A-Za-z]", "mnt"])))

    assert {relative(file): hit[0] for file in text_files() if (hit := paths.search(file.read_text()))} == {}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_files_name_no_registry(lock: Path) -> None:
    assert re.findall(r"https?://\S+|--(?:extra-)?index-url|--find-links", lock.read_text()) == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_package_has_a_hash(lock: Path) -> None:
    text = lock.read_text()
    if lock.suffix == ".json":
        entries = re.findall(r'"node_modules/[^"]+": \{[^}]*', text)
        assert entries
        assert [entry for entry in entries if '"integrity": "sha512-' not in entry] == []
    else:
        entries = re.split(r"\n(?=\S)", text)
        assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_program_that_ci_runs_can_be_run() -> None:
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_the_package_says_that_it_is_typed() -> None:
    assert (SOURCES / "py.typed").exists()
