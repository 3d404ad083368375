"""Rules about words: names that were given up, phrases that need a second reading, and class names that are used once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.tidy.tree import SOURCES, project_files, relative

CODE = [file for file in project_files() if file.is_relative_to(SOURCES) and file.suffix in {".py", ".pyx", ".pxd"}]
# Where the phrases are not banned yet: the first part of a path below the package.
NOT_YET_PLAIN: set[str] = set()
# Earlier names of classes, modules and attributes; docs/glossary.md has the words that replaced them.
FORMER_NAMES = re.compile(
    r"\b(LookBack|look_back|Keeper|keeper|DurableSessions|PlaceSearch|place_search|Surroundings|Promise|Burden|LogCare)\b"
)
# A comment names its subject (the client, the broker, the caller) and its numbers.
PHRASES = re.compile(
    r"\b(whoever|whomever|nobody|somebody|anybody|everybody|so many|to be had|is none of|that is none|that are none)\b",
    re.I,
)
# Class names that two modules share: `braidmq.testing.Broker` is what users import.
SHARED_NAMES = {"Broker"}


@pytest.mark.parametrize("file", CODE, ids=relative)
def test_names_that_were_given_up_do_not_come_back(file: Path) -> None:
    assert FORMER_NAMES.findall(file.read_text()) == []


@pytest.mark.parametrize("file", [file for file in CODE if file.relative_to(SOURCES).parts[0] not in NOT_YET_PLAIN], ids=relative)
def test_code_speaks_of_its_subject_and_not_of_somebody(file: Path) -> None:
    lines = enumerate(file.read_text().splitlines(), 1)

    assert [(number, line.strip()) for number, line in lines if PHRASES.search(line)] == []


def test_a_class_name_is_used_once() -> None:
    names = Counter(
        node.name
        for file in CODE
        if file.suffix == ".py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    )

    assert {name for name, count in names.items() if count > 1} - SHARED_NAMES == set()
