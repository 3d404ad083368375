"""docs/robustness.md lists, for each row, exactly the tests that are marked with it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "robustness.md"

FOLDERS = tuple(ROOT / "tests" / name for name in ("scenarios", "durability", "history", "spark", "cli", "net", "cluster"))

# Row 45 is about the management interface.
ROWS = (
    {str(number) for number in (*range(1, 45), *range(46, 67))}
    | {f"N{number}" for number in range(1, 5)}
    | {f"D{number}" for number in range(1, 12)}
    | {f"K{number}" for number in range(1, 17)}
    | {f"F{number}" for number in (4, 5, 7, 8, 13)}
)


def marked_tests() -> dict[str, set[str]]:
    """The tests of each row, by their marks."""
    tests: dict[str, set[str]] = defaultdict(set)
    for file in sorted(file for folder in FOLDERS for file in folder.rglob("test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.row":
                    for row in mark.args:
                        name = file.relative_to(ROOT / "tests").with_suffix("")
                        tests[str(ast.literal_eval(row))].add(f"{name}::{node.name}")
    return dict(tests)


def named_tests() -> dict[str, set[str]]:
    """The tests of each row, by the page: a list under the row's number."""
    tests: dict[str, set[str]] = {}
    for row, names in re.findall(r"^### (\w+): .*\n\n((?:- .*\n)+)", PAGE.read_text(), re.M):
        tests[row] = set(re.findall(r"^- `(\S+)`$", names, re.M))
    return tests


def test_every_row_has_an_answer_in_the_table() -> None:
    answers = dict(re.findall(r"^\| (\w+) \| [^|]+ \| ([^|]+) \|", PAGE.read_text(), re.M))

    assert {row for row, answer in answers.items() if answer.strip() and row != "#"} >= ROWS


def test_every_row_has_tests_and_the_page_names_them() -> None:
    marked = marked_tests()

    assert set(marked) == ROWS
    assert named_tests() == marked
