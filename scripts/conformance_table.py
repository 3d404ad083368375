"""Writes docs/conformance.md, all normative statements and the tests that verify them: ``python scripts/conformance_table.py``.

``tests/conformance/statements-5.0.txt`` and ``statements-3.1.1.txt`` have one line per statement: number, whom it binds (S
server, C client, B both), its meaning in our words, and a remark: the reason if no test verifies it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "conformance"
PAGE = ROOT / "docs" / "conformance.md"

SPECIFICATIONS = ("5.0", "3.1.1")
FOR_CLIENTS = "binds the client; a server need not react to a violation"

INTRODUCTION = """# Conformance

<!-- Made by scripts/conformance_table.py from the tests in tests/conformance. -->

Every numbered statement of MQTT 5.0 and MQTT 3.1.1, in our words, with the tests that verify it. The standards are authoritative;
this page is an index. *Binds* names the party: the server (S), the client (C) or both (B). A statement that binds the client has
a test if a server must react to a violation.

The tests speak MQTT over sockets to a running broker, and send malformed packets byte by byte. They can also test another broker:

```
pytest tests/conformance                            # starts the brokers it needs
BRAIDMQ_TEST_PORT=1883 pytest tests/conformance     # a running broker, with MQTT over WebSocket on BRAIDMQ_TEST_WS_PORT
```

The decorator `@shows("5.0: MQTT-3.1.2-22")` names the statements that a test verifies; `python scripts/conformance_table.py`
generates this page from them.
"""


class Statement(NamedTuple):
    """One numbered statement. ``remark`` is the reason if no test verifies it."""

    specification: str
    number: str
    binds: str
    meaning: str
    remark: str

    @property
    def key(self) -> str:
        """The name of the statement in ``shows``."""
        return f"{self.specification}: {self.number}"


class ConformanceTest(NamedTuple):
    """A test function and its file."""

    file: str
    name: str


def load_statements() -> dict[str, Statement]:
    """All statements by key, in the order of the specifications."""
    statements: dict[str, Statement] = {}
    for specification in SPECIFICATIONS:
        for line in (TESTS / f"statements-{specification}.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                continue
            number, binds, meaning, remark = (cell.strip() for cell in line.split("|"))
            remark = FOR_CLIENTS if remark == "client" else remark
            statement = Statement(specification, f"MQTT-{number}", binds, meaning, remark)
            assert statement.key not in statements, f"{statement.key} is listed twice"
            statements[statement.key] = statement
    return statements


def tests_by_statement() -> dict[str, list[ConformanceTest]]:
    """The tests that verify each statement, by its key, in the order of the files."""
    found: dict[str, list[ConformanceTest]] = {}
    for file in sorted(TESTS.glob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                for key in _shown(node):
                    found.setdefault(key, []).append(ConformanceTest(file.name, node.name))
    return found


def _shown(function: ast.FunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "shows":
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def render() -> str:
    """The text of the page."""
    statements, shown = load_statements().values(), tests_by_statement()
    lines = [INTRODUCTION, "| | statements | shown by tests | bind the client alone | not shown, for the reason given |"]
    lines.append("|---|---|---|---|---|")
    lines += [_count(name, [each for each in statements if each.specification == name], shown) for name in SPECIFICATIONS]
    for name in SPECIFICATIONS:
        lines += ["", f"## MQTT {name}", "", "| statement | binds | says | shown by |", "|---|---|---|---|"]
        lines += [_row(each, shown.get(each.key, [])) for each in statements if each.specification == name]
    return "\n".join(lines) + "\n"


def _count(name: str, statements: list[Statement], shown: dict[str, list[ConformanceTest]]) -> str:
    tested = sum(each.key in shown for each in statements)
    clients = sum(each.key not in shown and each.binds == "C" for each in statements)
    return f"| MQTT {name} | {len(statements)} | {tested} | {clients} | {len(statements) - tested - clients} |"


def _row(statement: Statement, tests: list[ConformanceTest]) -> str:
    parts = [
        f"[{file}](../tests/conformance/{file}): " + ", ".join(f"`{test.name}`" for test in tests if test.file == file)
        for file in dict.fromkeys(test.file for test in tests)
    ]
    if statement.remark:
        parts.append(f"*{statement.remark}*")
    return f"| {statement.number} | {statement.binds} | {statement.meaning} | {'<br>'.join(parts)} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"written: {PAGE}")
